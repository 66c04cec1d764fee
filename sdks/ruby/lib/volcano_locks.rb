# frozen_string_literal: true

# Client of the lock service: hold a lease, keep it renewed, be told when it is lost.
#
#     client = VolcanoLocks::Client.new
#     client.locks.with_lock("daily-rollup", ttl: 30) do |guard|
#       write(day, fencing_token: guard.fencing_token) unless guard.lost?
#     end
#
# Not promised: a lease cannot stop a process that is paused. Send `fencing_token` along with every write and let the
# place you write to refuse a lower one.
module VolcanoLocks
  class << self
    # @return [#warn, nil] where a release that failed quietly is told; standard error when left alone, nil for nowhere
    attr_writer :logger

    # @return [#warn, nil]
    def logger
      return @logger if defined?(@logger)

      require "logger"
      @logger = Logger.new($stderr, level: Logger::WARN, progname: "volcano_locks")
    end
  end
end

require_relative "volcano_locks/version"
require_relative "volcano_locks/errors"
require_relative "volcano_locks/clock"
require_relative "volcano_locks/discreet"
require_relative "volcano_locks/config"
require_relative "volcano_locks/arguments"
require_relative "volcano_locks/value"
require_relative "volcano_locks/lease"
require_relative "volcano_locks/messages"
require_relative "volcano_locks/heartbeat"
require_relative "volcano_locks/workers"
require_relative "volcano_locks/transport"
require_relative "volcano_locks/stream"
require_relative "volcano_locks/under_way"
require_relative "volcano_locks/courier"
require_relative "volcano_locks/flows"
require_relative "volcano_locks/acquisition"
require_relative "volcano_locks/rests"
require_relative "volcano_locks/waiting"
require_relative "volcano_locks/views"
require_relative "volcano_locks/events"
require_relative "volcano_locks/watching"
require_relative "volcano_locks/leading"
require_relative "volcano_locks/exclusive"
require_relative "volcano_locks/guard"
require_relative "volcano_locks/keeper"
require_relative "volcano_locks/block"
require_relative "volcano_locks/client"
