# frozen_string_literal: true

require "logger"

# Client of the lock service: hold a lease, keep it renewed, and learn of its loss.
#
#     client = VolcanoLocks::Client.new
#     client.locks.with_lock("daily-rollup", ttl: 30) do |guard|
#       write(day, fencing_token: guard.fencing_token) unless guard.lost?
#     end
#
# Limit: a lease cannot stop a paused process. Send `fencing_token` with every write, and let the target of the write
# refuse a lower one.
module VolcanoLocks
  class << self
    # @return [#warn, nil] a `Logger`, or any object with `warn`. It receives a warning when a lease is lost, a renewal
    #   fails or a block's release is not confirmed; and if its `debug?` is true, a `debug` message for each acquire,
    #   renewal, release and wait. Defaults to warnings on standard error; nil disables it. A background thread calls it
    attr_writer :logger

    # @return [#warn, nil]
    def logger
      return @logger if defined?(@logger)

      @logger = Logger.new($stderr, level: Logger::WARN, progname: "volcano_locks")
    end
  end
end

require_relative "volcano_locks/version"
require_relative "volcano_locks/errors"
require_relative "volcano_locks/clock"
require_relative "volcano_locks/fork_safe"
require_relative "volcano_locks/redacted"
require_relative "volcano_locks/log"
require_relative "volcano_locks/config"
require_relative "volcano_locks/protocol/arguments"
require_relative "volcano_locks/value"
require_relative "volcano_locks/protocol/lease"
require_relative "volcano_locks/protocol/messages"
require_relative "volcano_locks/protocol/renewal_plan"
require_relative "volcano_locks/http/pending_request"
require_relative "volcano_locks/http/request_threads"
require_relative "volcano_locks/http/connection"
require_relative "volcano_locks/http/transport"
require_relative "volcano_locks/http/event_stream"
require_relative "volcano_locks/holding/pending_acquisitions"
require_relative "volcano_locks/http/request_sender"
require_relative "volcano_locks/protocol/operations"
require_relative "volcano_locks/protocol/renewal_request"
require_relative "volcano_locks/protocol/acquisition"
require_relative "volcano_locks/protocol/backoff"
require_relative "volcano_locks/protocol/acquire_wait"
require_relative "volcano_locks/protocol/lock_view"
require_relative "volcano_locks/protocol/lock_reader"
require_relative "volcano_locks/protocol/hold_entry"
require_relative "volcano_locks/protocol/history_reader"
require_relative "volcano_locks/protocol/sse"
require_relative "volcano_locks/features/leadership"
require_relative "volcano_locks/features/watch"
require_relative "volcano_locks/features/leader"
require_relative "volcano_locks/features/exclusive"
require_relative "volcano_locks/holding/hold"
require_relative "volcano_locks/holding/guard"
require_relative "volcano_locks/holding/renewer"
require_relative "volcano_locks/holding/open_blocks"
require_relative "volcano_locks/holding/trap_handler"
require_relative "volcano_locks/holding/block"
require_relative "volcano_locks/client"
