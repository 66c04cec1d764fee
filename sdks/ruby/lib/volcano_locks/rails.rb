# frozen_string_literal: true

require "rails"
require_relative "active_job"

module VolcanoLocks
  # Rails: `exclusive_by` in Active Job, `exclusive_task` in Rake files, and a guard for `db:migrate`: one host migrates
  # while the others wait, and they then find nothing to do.
  #
  #     gem "volcano_locks", require: "volcano_locks/rails"
  #
  # Settings, in `config/application.rb`: `config.volcano_locks.migrate_key`, `ttl` and `migrate_wait` in seconds, and
  # `guarded_tasks`.
  class Railtie < ::Rails::Railtie
    config.volcano_locks = ActiveSupport::OrderedOptions.new
    config.volcano_locks.migrate_key = "rails-migrate"
    config.volcano_locks.ttl = 60
    config.volcano_locks.migrate_wait = 900
    config.volcano_locks.guarded_tasks = %w[db:migrate db:rollback db:prepare]

    # The engine's tasks are loaded with the application's, after those of Active Record.
    rake_tasks do |app|
      require_relative "rake"
      settings = app.config.volcano_locks
      lock = { key: settings.migrate_key, ttl: settings.ttl, on_held: :wait, wait: settings.migrate_wait }
      settings.guarded_tasks.each do |name|
        VolcanoLocks::Rake.guard(name, **lock) if ::Rake::Task.task_defined?(name)
      end
    end
  end
end
