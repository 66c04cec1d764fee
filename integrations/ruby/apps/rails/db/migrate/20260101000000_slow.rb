# frozen_string_literal: true

class Slow < ActiveRecord::Migration[6.1]
  disable_ddl_transaction!

  def change
    File.write(ENV.fetch("JOURNAL"), "start migrate #{Process.pid}\n", mode: "a")
    sleep(ENV.fetch("MIGRATION_SECONDS", "1").to_f)
    File.write(ENV.fetch("JOURNAL"), "end migrate #{Process.pid}\n", mode: "a")
  end
end
