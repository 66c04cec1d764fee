# frozen_string_literal: true

module Conformance
  # The verbs of blocks, views, watching, leading and exclusive functions.
  module FeatureVerbs
    def enter(args)
      options = { ttl: args.fetch("ttl_seconds"), token: args["token"], request_id: args["request_id"],
                  hold_at_least: args["hold_at_least_seconds"] }
      options[:renew_every] = args["renew_every_seconds"] if args["renew_every_seconds"]
      block = HeldBlock.new(locks(args), @clock, args.fetch("key"), **options, **wait_option(args))
      until_over { block.entered? }
      block.task.result if block.task.over?
      @blocks[actor_and_key(args)] = block
      guard(args)
    end

    def guard(args)
      guard = @blocks.fetch(actor_and_key(args)).guard
      { lost: guard.lost?, **lease_result(guard.lease) }
    end

    def exit(args)
      block = @blocks.fetch(actor_and_key(args))
      block.finish(args.fetch("body", "returns"))
      until_over { block.task.over? }
      block.task.result
      {}
    end

    def view(args)
      view_result(blocking { locks(args).view(args.fetch("key")) })
    end

    def history(args)
      holds = blocking { locks(args).history(args.fetch("key")).to_a }
      { holds: holds.map { |hold| "#{hold.holder} #{hold.ended || 'held'}" } }
    end

    def list(args)
      state = args.fetch("state", "all")
      { keys: blocking { locks(args).list(args.fetch("prefix", ""), state: state).map(&:key) } }
    end

    def watch(args)
      seen = Queue.new
      task = Task.new(@clock) { locks(args).watch(args.fetch("key")) { |change| seen << change } }
      @watches[actor_and_key(args)] = [task, seen]
      Conformance.wait_until { !seen.empty? || task.over? }
      @clock.settle
      {}
    end

    # The changes since the last call.
    def watched(args)
      @clock.settle
      task, seen = @watches.fetch(actor_and_key(args))
      Conformance.wait_until { seen.length >= args.fetch("count", 0) || task.over? }
      task.result if task.over?
      { changes: Array.new(seen.length) { change_result(seen.pop) } }
    end

    def lead(args)
      @campaigns[actor_and_key(args)] = Campaign.new(locks(args), @clock, args.fetch("key"), args.fetch("ttl_seconds"))
      @clock.settle
      {}
    end

    def leading(args)
      @clock.settle
      campaign = @campaigns.fetch(actor_and_key(args))
      Conformance.wait_until do
        campaign.starts >= args.fetch("starts", 0) && campaign.ends >= args.fetch("ends", 0)
      end
      @clock.settle
      { starts: campaign.starts, ends: campaign.ends, fencing_token: campaign.fencing_token }.compact
    end

    def resign(args)
      campaign = @campaigns.fetch(actor_and_key(args))
      campaign.finish(args.fetch("body", "returns"))
      until_over { campaign.task.over? }
      campaign.check_result
      {}
    end

    # A block whose body enters another one on the same key: the result of the inner block.
    def nest(args)
      blocking do
        locks(args).with_lock(args.fetch("key"), ttl: args.fetch("ttl_seconds")) do |guard|
          inner = enter_inner(args)
          { **inner, lost: guard.lost? }
        end
      end
    end

    # Call an exclusive function.
    def call(args)
      ran = { ran: false }
      options = { ttl: args.fetch("ttl_seconds"), on_held: args.fetch("on_held", "raise"),
                  hold_at_least: args["hold_at_least_seconds"] }
      function = locks(args).exclusive("{name}", **options) do |name:, guard:|
        ran = { ran: name == args.fetch("key"), fencing_token: guard.fencing_token }
        raise BodyError, "the block's own error" if args["body"] == "raises"
      end
      blocking { function.call(name: args.fetch("key")) }
      ran
    end

    private

    def enter_inner(args)
      locks(args).with_lock(args.fetch("key"), ttl: args.fetch("ttl_seconds"), **wait_option(args)) { {} }
    rescue VolcanoLocks::VolcanoError => e
      failure(e)
    end
  end
end
