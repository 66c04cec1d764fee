# frozen_string_literal: true

require "rails"
require "active_record/railtie"
require "volcano_locks/rails"

class App < Rails::Application
  config.eager_load = false
  config.logger = Logger.new($stderr, level: Logger::WARN)
  config.secret_key_base = "test"
  config.volcano_locks.ttl = 5
  config.active_record.dump_schema_after_migration = false
end
