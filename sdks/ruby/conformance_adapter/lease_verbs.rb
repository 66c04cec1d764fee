# frozen_string_literal: true

module Conformance
  FOREVER = "forever"

  # The verbs of a lease.
  module LeaseVerbs
    def acquire(args)
      result = remember(args, blocking { acquire_lease(args) })
      args["spelling"] ? { **result, ids_kept: lease(args).token == args.fetch("token") } : result
    rescue VolcanoLocks::VolcanoError => e
      raise unless args["spelling"]

      { **failure(e), ids_kept: e.request_id == args.fetch("request_id") }
    end

    def renew(args)
      checking_arguments(args) do
        remember(args, blocking { locks(args).renew(*key_and_lease(args), ttl: args.fetch("ttl_seconds")) })
      end
    end

    def release(args)
      checking_arguments(args) do
        blocking { locks(args).release(*key_and_lease(args)) }
        {}
      end
    end

    def get(args)
      state = blocking { locks(args).get(args.fetch("key")) }
      state.held? ? { held: true, **lease_result(state) } : { held: false }
    end

    def force_release(args)
      options = args.slice("fencing_token", "reason").transform_keys(&:to_sym)
      blocking { locks(args).force_release(args.fetch("key"), **options) }
      {}
    end

    def race(args)
      racers = args.fetch("tokens").map do |token|
        Task.new(@clock) { lease_or_code(args, token) }
      end
      until_over { racers.all?(&:over?) }
      leases, codes = racers.map(&:result).partition { |one| one.is_a?(VolcanoLocks::Lease) }
      { granted: leases.length, refused: codes.tally, **(leases.empty? ? {} : lease_result(leases.first)) }
    end

    # Start an acquire that waits while other actors act.
    def wait(args)
      @waits[actor_and_key(args)] = Task.new(@clock) { acquire_lease(args).tap { |lease| remember(args, lease) } }
      @clock.settle
      {}
    end

    def waited(args)
      @clock.settle
      task = @waits.fetch(actor_and_key(args))
      task.over? ? lease_result(task.result) : { pending: true }
    end

    def hang_up(args)
      task = @waits.fetch(actor_and_key(args))
      task.interrupt
      until_over { task.over? }
      {}
    end

    private

    # A known lease is acquired with its token, unless the scenario gives that token in another spelling.
    def acquire_lease(args)
      known = @leases[args.fetch("lease")]&.token
      token = args["spelling"] ? args.fetch("token") : known || args["token"]
      locks(args).acquire(args.fetch("key"), ttl: args.fetch("ttl_seconds"), token: token,
                                             request_id: args["request_id"], **wait_option(args))
    end

    def lease_or_code(args, token)
      @clients.fetch("racers").locks.acquire(args.fetch("key"), ttl: args.fetch("ttl_seconds"), token: token,
                                                                **wait_option(args))
    rescue VolcanoLocks::VolcanoError => e
      code_of(e)
    end

    def wait_option(args)
      seconds = args["wait_seconds"]
      { wait: seconds == FOREVER ? Float::INFINITY : seconds }
    end

    # The first two arguments of renew and release, wrong if the scenario asks for that.
    def key_and_lease(args)
      case args["given"]
      when "another_key" then ["#{args.fetch('key')}-another", lease(args)]
      when "no_lease" then [args.fetch("key"), { ttl: 30 }]
      else [args.fetch("key"), lease(args)]
      end
    end

    # Only a deliberately wrong call gets the code of an argument error; any other one is a fault of the client.
    def checking_arguments(args)
      yield
    rescue ArgumentError, TypeError
      raise unless args["given"]

      { error: "argument" }
    end

    def remember(args, lease)
      @leases[args.fetch("lease")] = lease
      lease_result(lease)
    end

    def lease(args)
      @leases.fetch(args.fetch("lease"))
    end
  end
end
