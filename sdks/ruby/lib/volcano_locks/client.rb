# frozen_string_literal: true

module VolcanoLocks
  # A connection to the lock service.
  #
  # A client may be shared by threads. It starts nothing until it is used, and follows a `fork` by starting anew in the
  # child. Close it to end its threads and connections at once.
  class Client
    include Discreet

    # @return [Locks] the verbs
    attr_reader :locks

    # @param api_url [String, nil] where the service is; `VOLCANO_API_URL` when left out
    # @param service_key [String, nil] what opens it; `VOLCANO_SERVICE_KEY` when left out
    # @param timeout [Numeric] the most seconds one request may take; a verb sends at most two
    # @param holder [String, nil] the label people see; `host/pid` when left out
    # @param clock [#now, #wait, #pause, #watch, nil] the real one when left out
    # @param transport [#call, nil] what sends requests; an {HttpTransport} when left out
    # @raise [ArgumentError, TypeError] naming what is missing or wrong
    def initialize(api_url: nil, service_key: nil, timeout: Config::TIMEOUT_SECONDS, holder: nil, clock: nil,
                   transport: nil)
      config = Config.new(api_url: api_url, service_key: service_key, timeout_seconds: timeout, holder: holder)
      @api_url = config.api_url
      @locks = Locks.new(config, clock || SystemClock.new, transport || HttpTransport.new(config.api_url))
    end

    # A client for the length of a block, closed after it; options as for `new`.
    def self.open(**options)
      client = new(**options)
      begin
        yield client
      ensure
        client.close
      end
    end

    # End the threads and the connections. Blocks still open are renewed no more, and not released; the releases of
    # those that are being left end first (bounded).
    def close
      @locks.close
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{@api_url}>"
    end
  end

  # The verbs. Each raises a {VolcanoError} for what was answered or not, and `TypeError` or `ArgumentError` for bad
  # arguments, before anything is sent.
  class Locks
    include Discreet
    include ExclusiveFunctions

    # Made beforehand: making it would be a moment in which an interrupt comes through.
    NEVER = { Object => :never }.freeze
    private_constant :NEVER

    # @api private
    def initialize(config, clock, transport)
      @clock = clock
      @courier = Courier.new(config, clock, transport)
      @flows = Flows.new(@courier, clock, config.timeout_seconds)
      @views = Views.new(@flows, @courier)
      @keeper = Keeper.new(@flows, clock)
      @api_url = config.api_url
    end

    # A lease of `ttl` seconds. The same `token` again gives the same lease.
    #
    # With `wait`, it stands in the lock's line for so long, over lost connections and restarts of the server, with one
    # token (SDK-11).
    #
    # With your own `token` and no `wait`, a time-out, a transport failure or a 503 leaves the lock as it is: call again
    # with the same `token` and `request_id` to recover the lease (SDK-18). After any other failure that leaves the
    # outcome unknown, and after an interrupt (`Timeout.timeout`, `Thread#raise`), the client sends a release before it
    # raises. Between its return and your assignment an interrupt can still lose the lease; `with_lock` has no such gap.
    #
    # @param key [String]
    # @param ttl [Integer] 5 to 7,776,000
    # @param wait [Numeric, nil] how many seconds to wait for the lock; `Float::INFINITY` for ever
    # @param token [String, nil] an owner token of your own, a UUID, to recover an uncertain acquire
    # @param request_id [String, nil] a request id of your own, a UUID
    # @return [Lease]
    # @raise [LockHeldError] when somebody else has the lock, and had it to the end of the wait
    def acquire(key, ttl:, wait: nil, token: nil, request_id: nil)
      acquisition = @flows.acquisition(key, ttl, wait: wait, token: token, request_id: request_id)
      recoverable = !token.nil? && !acquisition.is_a?(Wait)
      error = nil
      begin
        lease = acquisition.run
        acquisition.taken
        got = true # after which nothing is called any more
        lease
      rescue Exception => e # rubocop:disable Lint/RescueException
        error = e
        raise
      ensure
        Thread.handle_interrupt(NEVER) { acquisition.give_up(error, recoverable: recoverable) } unless got
      end
    end

    # The lease, now ending `ttl` seconds (its own when left out) from now.
    #
    # Never renew a block's lease by hand: the block does not learn of it. Never shorten a lease after a renewal that
    # timed out: a late duplicate of the shorter renewal may still land, after a longer one, and end the lease before
    # the deadline you go by.
    #
    # @param key [String] the lock, which must be the lease's
    # @return [Lease] a new object; the old one still releases
    # @raise [LockOwnershipLostError] when it is not the caller's any more
    def renew(key, lease, ttl: nil, request_id: nil)
      @flows.renew(Arguments.checked_lease(key, lease, "renew(key, lease, ttl: 60)"), ttl, request_id)
    end

    # Free the lock.
    #
    # @param key [String] the lock, which must be the lease's
    # @raise [LockOwnershipLostError] if another owner holds it by now
    def release(key, lease, request_id: nil)
      @flows.release(Arguments.checked_lease(key, lease, "release(key, lease)"), request_id)
    end

    # @return [LockState] whether the lock is held, until when, and its fencing token
    def get(key, request_id: nil)
      @flows.get(key, request_id)
    end

    # Free the lock whoever holds it. Its holder is told of the loss at its next renewal.
    def force_release(key, request_id: nil)
      @flows.force_release(key, request_id)
    end

    # Hold the lock, renewed in the background, while the block runs; then release it.
    #
    # The block does not run without the lock (case 18), and is not interrupted by a loss: ask `guard.lost?`, or
    # `guard.raise_if_lost!`, before what must not be done twice. Once the block is being left the guard counts as lost,
    # for a thread that outlives it.
    #
    # @param wait [Numeric, nil] how many seconds to wait for the lock, as for `acquire`
    # @param hold_at_least [Numeric, nil] seconds from the entering: a block that is left sooner does not release, but
    #   leaves the lock to expire then (SDK-12)
    # @param token [String, nil] an owner token of your own, a UUID
    # @param request_id [String, nil] a request id of your own for the acquire, a UUID
    # @yieldparam guard [LockGuard]
    # @return [Object] what the block returns
    # @raise [LockHeldError] when somebody else has the lock, and had it to the end of the wait
    # @raise [LockOwnershipLostError] when the block succeeded but its ownership was lost
    def with_lock(key, ttl:, wait: nil, hold_at_least: nil, token: nil, request_id: nil, &body)
      raise ArgumentError, "with_lock needs a block" unless body

      acquisition = @flows.acquisition(key, ttl, wait: wait, token: token, request_id: request_id)
      in_block(new_block(acquisition, checked_hold(hold_at_least)), &body)
    end

    # Lead for as long as it can be: wait for the lock for ever, run the block while it is held, and wait again when it
    # was lost (SDK-13). Each run has ended, and the lock was given back, before the next begins.
    #
    # The block is not interrupted by a loss: it asks `guard.lost?` or `guard.raise_if_lost!`, as in `with_lock`. If it
    # returns while it leads, that ends it all; so does what it raises, but for the very loss that it was told of.
    #
    # @param stop [#call, nil] asked every moment of a campaign: true ends it, and gives the place in the line back.
    #   While the block runs, it is for the block to ask
    # @yieldparam guard [LockGuard]
    # @return [Object, nil] what the block returned; nil if `stop` said so
    def lead(key, ttl:, stop: nil, &run)
      raise ArgumentError, "lead needs a block" unless run

      Arguments.checked_key(key)
      Arguments.checked_ttl(ttl)
      leading = Leading.new(stop) do
        new_block(@flows.acquisition(key, ttl, wait: Float::INFINITY, stop: stop))
      end
      leading.run { |term| in_block(term, &run) }
    end

    # The changes of who holds a lock: first how it is, then each change, as it happens (SDK-14). It goes on over lost
    # connections and restarts of the server, and ends by a `break`, by closing the client, or by an error that time
    # does not mend.
    #
    # @yieldparam change [Leadership]
    # @return [Enumerator] without a block; each run through it is a watch of its own
    def watch(key, &changed)
      Arguments.checked_key(key)
      return new_watch(key).each(&changed) if changed

      Enumerator.new { |changes| new_watch(key).each { |change| changes << change } }
    end

    # The project's locks whose keys begin with `prefix`, in the order of their keys (SDK-15). Pages are asked for when
    # they are needed.
    #
    # @param state [String, Symbol] `held`, `free` or `all`
    # @yieldparam view [LockView]
    # @return [Enumerator] without a block
    def list(prefix = "", state: "all", &seen)
      views = @views.list(prefix, state)
      return views unless seen

      views.each(&seen)
      nil
    end

    # @return [LockView] all that whoever looks may know of one lock
    def view(key, request_id: nil)
      @views.view(key, request_id)
    end

    # @api private
    def close
      @keeper.close
      @courier.close
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
      Watch.new(key, @flows, @views, @courier, @clock)
    end

    def new_block(acquisition, hold_seconds = 0.0)
      Block.new(@flows, @keeper, @clock, acquisition, hold_seconds)
    end

    # What has to be undone is noted in `block` before it is done, so an interrupt may hit anywhere in here; only the
    # way out is shielded. Nothing shields the body: the caller's own `Thread.handle_interrupt` keeps its meaning.
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
