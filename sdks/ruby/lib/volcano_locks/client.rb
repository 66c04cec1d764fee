# frozen_string_literal: true

module VolcanoLocks
  # A client of the lock service.
  #
  # Threads may share a client. It starts no thread before its first request. After a `fork`, the child starts its own
  # threads and connections. `close` ends them at once.
  #
  # @example
  #   client = VolcanoLocks::Client.new # reads VOLCANO_API_URL and VOLCANO_SERVICE_KEY
  #   client.locks.with_lock("daily-rollup", ttl: 30) { |guard| rollup(guard.fencing_token) }
  class Client
    include Redacted

    # @return [Locks] the lock operations
    attr_reader :locks

    # @param api_url [String, nil] URL of the service; defaults to `VOLCANO_API_URL`, and then to the
    #   `http://127.0.0.1:7420` of `volcano-locks dev`
    # @param service_key [String, nil] credential for the service; defaults to `VOLCANO_SERVICE_KEY`
    # @param timeout [Numeric] limit of one request in seconds; an operation sends at most two requests
    # @param holder [String, nil] the label that people see; defaults to `host/pid`
    # @param clock [#now, #wait, #pause, #watch, nil] defaults to the real clock
    # @param transport [#call, nil] sends the requests; defaults to an {HttpTransport}
    # @raise [ArgumentError, TypeError] naming the argument that is missing or wrong
    def initialize(api_url: nil, service_key: nil, timeout: Config::TIMEOUT_SECONDS, holder: nil, clock: nil,
                   transport: nil)
      config = Config.new(api_url: api_url, service_key: service_key, timeout_seconds: timeout, holder: holder)
      @api_url = config.api_url
      clock ||= SystemClock.new
      # Sockets count real seconds, which mean nothing to a test's clock.
      seconds = clock.is_a?(SystemClock) ? nil : HttpTransport::SECONDS_WITH_ANOTHER_CLOCK
      @locks = Locks.new(config, clock, transport || HttpTransport.new(config.api_url, timeout_seconds: seconds))
    end

    # Run a block with a client that is closed afterwards. Takes the options of `new`.
    #
    # @example
    #   VolcanoLocks::Client.open { |client| client.locks.with_lock("daily-rollup", ttl: 30) { rollup } }
    def self.open(**options)
      client = new(**options)
      begin
        yield client
      ensure
        client.close
      end
    end

    # End the threads and the connections. Blocks that are still open are neither renewed nor released. Releases that
    # have begun finish first, within a few seconds. A trap handler may call it: it then waits up to two seconds.
    def close
      @locks.close
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{@api_url}>"
    end

    private

    # Ractor also copies what it is given.
    def initialize_copy(_other)
      raise TypeError, "a #{self.class} cannot be copied, nor passed to a Ractor: all threads can share one"
    end
  end

  # The lock operations. Each raises a {VolcanoError} if the request fails or is refused. Bad arguments raise
  # `TypeError` or `ArgumentError` before anything is sent.
  class Locks
    include Redacted
    include ExclusiveFunctions

    # A constant, because an interrupt could arrive while a new hash is made.
    NEVER = { Object => :never }.freeze
    RECOVER = "The lock may be held for you: acquire it again with the same token and request_id to recover the lease"
    private_constant :NEVER, :RECOVER

    # @api private
    def initialize(config, clock, transport)
      @clock = clock
      @sender = RequestSender.new(config, clock, transport)
      @operations = Operations.new(@sender, clock, config.timeout_seconds)
      @lock_reader = LockReader.new(@operations, @sender)
      @renewer = Renewer.new(@operations, clock)
      @api_url = config.api_url
    end

    # Acquire a lease of `ttl` seconds. The same `token` gives the same lease again.
    #
    # With `wait`, the request joins the lock's wait queue for that long. The wait continues over lost connections and
    # server restarts with the same token.
    #
    # With your own `token` and no `wait`, a time-out, a transport failure or a 503 leaves the lock as it is: call again
    # with the same `token` and `request_id` to recover the lease. After any other failure with an unknown
    # outcome, and after an interrupt (`Timeout.timeout`, `Thread#raise`), the client sends a release before it raises.
    # An interrupt between the return and your assignment can still lose the lease; `with_lock` has no such gap.
    #
    # @example
    #   lease = locks.acquire("migration", ttl: 30)
    #   begin
    #     migrate(lease.fencing_token)
    #   ensure
    #     locks.release("migration", lease)
    #   end
    # @param key [String]
    # @param ttl [Integer] 5 to 7,776,000
    # @param wait [Numeric, nil] limit of the wait in seconds; `Float::INFINITY` has no limit
    # @param token [String, nil] your own owner token, a UUID, to recover an uncertain acquire
    # @param request_id [String, nil] your own request id, a UUID
    # @return [Lease]
    # @raise [LockHeldError] if another owner holds the lock until the end of the wait
    def acquire(key, ttl:, wait: nil, token: nil, request_id: nil)
      acquisition = @operations.acquisition(key, ttl, wait: wait, token: token, request_id: request_id)
      recoverable = !token.nil? && !acquisition.is_a?(AcquireWait)
      error = nil
      begin
        lease = acquisition.run
        acquisition.complete
        acquired = true # no method call may follow: an interrupt could arrive there
        lease
      rescue Exception => e # rubocop:disable Lint/RescueException
        error = e
        raise unless recoverable && acquisition.recoverable?(e)

        raise e.exception("#{e.message}. #{RECOVER}"), cause: e.cause
      ensure
        Thread.handle_interrupt(NEVER) { acquisition.abandon(error, recoverable: recoverable) } unless acquired
      end
    end

    # Set the lease's end to `ttl` seconds from now. `ttl` defaults to that of the lease.
    #
    # Do not renew a block's lease by hand: the block does not see the new lease. Do not shorten a lease after a renewal
    # that timed out: its late duplicate could end the lease before the deadline of a later, longer renewal.
    #
    # @example
    #   lease = locks.renew("migration", lease, ttl: 60)
    # @param key [String] the lock, which must be the lease's
    # @return [Lease] a new object; the old one still releases
    # @raise [LockOwnershipLostError] if the lease is no longer the caller's
    def renew(key, lease, ttl: nil, request_id: nil)
      @operations.renew(Arguments.checked_lease(key, lease, "renew(key, lease, ttl: 60)"), ttl, request_id)
    end

    # Free the lock.
    #
    # An interrupt does not stop it: the release continues in the background. In a trap handler it runs in another
    # thread, for which the handler waits up to two seconds.
    #
    # @example
    #   locks.release("migration", lease)
    # @param key [String] the lock, which must be the lease's
    # @raise [LockOwnershipLostError] if another owner holds it now
    def release(key, lease, request_id: nil)
      over = false
      Arguments.checked_lease(key, lease, "release(key, lease)")
      TrapHandler.run { @operations.release(lease, request_id) }
      over = true
      nil
    rescue VolcanoError => e
      over = !e.request_id.nil? # otherwise the program raised it into this thread
      raise
    ensure
      Thread.handle_interrupt(NEVER) { @operations.release_in_background(key, lease, request_id) } unless over
    end

    # @example
    #   locks.get("migration").held # => true
    # @return [LockState] whether the lock is held, until when, and its fencing token
    def get(key, request_id: nil)
      @operations.get(key, request_id)
    end

    # Free the lock, regardless of its owner. The holder learns of the loss at its next renewal.
    #
    # @example
    #   seen = locks.view("migration")
    #   locks.force_release("migration", fencing_token: seen.fencing_token, reason: "host is gone") if seen.held?
    # @param fencing_token [Integer, nil] free the lock only from this lease, such as `view` shows it. If the lock has
    #   changed hands since, nothing is freed, and a {ConflictError} with the code `lock_changed` is raised; a server
    #   that is too old for this frees nothing, and a {NotFoundError} is raised
    # @param reason [String, nil] why, in at most 200 characters, for the server's log and the `force_released` event
    def force_release(key, fencing_token: nil, reason: nil, request_id: nil)
      @operations.force_release(key, fencing_token, reason, request_id)
    end

    # Hold the lock while the block runs, renew it in the background, and release it afterwards.
    #
    # The block never runs without the lock. A loss does not interrupt it: check `guard.lost?` or
    # `guard.raise_if_lost!` before work that must not be done twice. When the block ends, the guard counts as lost, so
    # that a thread that outlives the block stops.
    #
    # Blocks are not re-entrant: a block inside a block on the same key of the same client, in the same thread, raises
    # {LockHeldError} at once, also with `wait`. What a lazy result does after the block, it does without the
    # lock.
    #
    # @example
    #   locks.with_lock("daily-rollup", ttl: 30) do |guard|
    #     guard.raise_if_lost!
    #     rollup(guard.fencing_token)
    #   end
    # @param wait [Numeric, nil] limit of the wait in seconds, as for `acquire`
    # @param hold_at_least [Numeric, nil] minimum holding time in seconds from the start of the block. If the block ends
    #   sooner, the lock is not released but expires at that time
    # @param renew_every [Numeric, nil] seconds between renewals, from 1 to a third of `ttl`. Defaults to a third of
    #   `ttl`, at most 60 while more than half of the project's quota is left
    # @param token [String, nil] your own owner token, a UUID
    # @param request_id [String, nil] your own request id for the acquire, a UUID
    # @yieldparam guard [LockGuard]
    # @return [Object] the block's value
    # @raise [LockHeldError] if another owner holds the lock until the end of the wait
    # @raise [LockOwnershipLostError] if the block succeeded but the lock was lost
    def with_lock(key, ttl:, wait: nil, hold_at_least: nil, renew_every: nil, token: nil, request_id: nil, &body)
      raise ArgumentError, "with_lock needs a block" unless body

      acquisition = @operations.acquisition(key, ttl, wait: wait, token: token, request_id: request_id)
      renew_every = Arguments.checked_renew_every(renew_every, Arguments.checked_ttl(ttl))
      in_block(new_block(acquisition, checked_hold(hold_at_least), renew_every), &body)
    end

    # Campaign for leadership: wait for the lock without limit, run the block while it is held, and campaign again after
    # a loss. The next campaign begins when the block has ended and the lock has been released.
    #
    # A loss does not interrupt the block: check `guard.lost?` or `guard.raise_if_lost!`, as in `with_lock`. `lead` ends
    # when the block returns while it leads, or raises anything but its own loss.
    #
    # @example
    #   locks.lead("scheduler", ttl: 15) do |guard|
    #     plan_jobs(guard.fencing_token) until guard.wait_lost(timeout: 1)
    #   end
    # @param stop [#call, nil] polled during a campaign: true ends it and leaves the wait queue. It is not polled while
    #   the block runs
    # @param renew_every [Numeric, nil] as for `with_lock`
    # @yieldparam guard [LockGuard]
    # @return [Object, nil] the block's value; nil if `stop` ended the campaign
    def lead(key, ttl:, stop: nil, renew_every: nil, &run)
      raise ArgumentError, "lead needs a block" unless run

      Arguments.checked_key(key)
      renew_every = Arguments.checked_renew_every(renew_every, Arguments.checked_ttl(ttl))
      leader = Leader.new(stop) do
        new_block(@operations.acquisition(key, ttl, wait: Float::INFINITY, stop: stop), 0.0, renew_every)
      end
      leader.run { |term| in_block(term, &run) }
    end

    # Follow who holds a lock: yields the current leadership, then each change. The watch continues over lost
    # connections and server restarts. It ends by `break`, by closing the client, or by a permanent error.
    #
    # @example
    #   locks.watch("scheduler") { |change| puts change.held? ? change.holder : "free" }
    # @yieldparam change [Leadership]
    # @return [Enumerator] without a block; each run through it is a separate watch
    def watch(key, &changed)
      Arguments.checked_key(key)
      return new_watch(key).each(&changed) if changed

      Enumerator.new { |changes| new_watch(key).each { |change| changes << change } }
    end

    # List the project's locks whose keys begin with `prefix`, ordered by key. Pages are fetched on demand.
    #
    # @example
    #   locks.list("report-", state: :held) { |view| puts "#{view.key} #{view.holder}" }
    # @param state [String, Symbol] `held`, `free` or `all`
    # @yieldparam view [LockView]
    # @return [Enumerator] without a block
    def list(prefix = "", state: "all", &seen)
      views = @lock_reader.list(prefix, state)
      return views unless seen

      views.each(&seen)
      nil
    end

    # Show who held the lock, the latest hold first: the current one, expired ones, and those of the last days
    # (`--history-days` of the server). Pages are fetched on demand.
    #
    # @example
    #   locks.history("scheduler", at: Time.now - 3600) { |hold| puts hold.holder, hold.ended }
    #
    # @param at [Time, nil] only the hold that lasted at this instant
    # @param since [Time, nil] only holds that lasted at this instant or later
    # @param before [Time, nil] only holds that began before this instant
    # @yieldparam hold [HoldEntry]
    # @return [Enumerator] without a block
    def history(key, at: nil, since: nil, before: nil, &seen)
      holds = HistoryReader.new(@lock_reader).history(key, { at: at, since: since, before: before })
      return holds unless seen

      holds.each(&seen)
      nil
    end

    # @example
    #   view = locks.view("scheduler")
    #   puts view.holder, view.expires_at, view.waiters
    # @return [LockView] everything that is public about one lock
    def view(key, request_id: nil)
      @lock_reader.view(key, request_id)
    end

    # @api private
    def close
      TrapHandler.run do
        @renewer.close
        @sender.close
      end
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{@api_url}>"
    end

    private

    def checked_hold(hold_at_least)
      Arguments.checked_seconds("hold_at_least", hold_at_least, max: Arguments::TTL_SECONDS_MAX)
    end

    def new_watch(key)
      Watch.new(key, @operations, @lock_reader, @sender, @clock)
    end

    def new_block(acquisition, hold_seconds, renew_every)
      Block.new(@operations, @renewer, @clock, acquisition, hold_seconds, renew_every)
    end

    # `block` records each change before making it, so an interrupt may arrive anywhere in here; only `leave` is
    # shielded. The body is not: the caller's own `Thread.handle_interrupt` keeps its meaning.
    def in_block(block)
      error = nil
      begin
        block.enter
        yield block.guard
      rescue Exception => e # rubocop:disable Lint/RescueException
        error = e
        raise
      ensure
        Thread.handle_interrupt(NEVER) do
          block.leave(error, aborting: Thread.current.status == "aborting")
        end
      end
    end
  end
end
