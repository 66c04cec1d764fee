# frozen_string_literal: true

module VolcanoLocks
  # The blocks that are open in the current thread. A block inside a block on the same key would wait for itself, so it
  # is refused (SDK-26, case 82).
  #
  # Fibers under a scheduler count as threads of their own: only the fiber that waits stops. Without a scheduler a wait
  # stops the whole thread, so all of its fibers count as one.
  module OpenBlocks
    VARIABLE = :volcano_locks_open_blocks

    # The fiber is known by its id: a reference would keep alive the guard of a block in a fiber that is never resumed.
    OpenBlock = Struct.new(:client, :hold, :fiber_id)
    private_constant :VARIABLE, :OpenBlock

    module_function

    # `client` is any object that the client's blocks have in common.
    #
    # @raise [LockHeldError] if a block of this client holds the lock `key` here
    def refuse_nested(client, key)
      outer = all.find do |one|
        one.client.equal?(client) && one.hold.lease.key == key && here?(one) && !one.hold.lost?
      end
      return if outer.nil?

      lease = outer.hold.lease
      message = "the lock #{key.inspect} is held by an outer block of this thread: blocks are not re-entrant, so the " \
                "inner block would wait for itself. Leave the outer block first, or use its guard"
      raise LockHeldError.new(message, key: key, expires_at: lease.expires_at, fencing_token: lease.fencing_token,
                                       code: LOCK_HELD)
    end

    # The block of `hold` begins. Blocks whose hold is lost are removed.
    def add(client, hold)
      all.delete_if { |one| one.hold.lost? } << OpenBlock.new(client, hold, Fiber.current.object_id)
    end

    # The block of `hold` ends.
    def remove(hold)
      all.delete_if { |one| one.hold.equal?(hold) }
    end

    def here?(open_block)
      open_block.fiber_id == Fiber.current.object_id || Fiber.current_scheduler.nil?
    end

    def all
      thread = Thread.current
      thread.thread_variable_get(VARIABLE) || thread.thread_variable_set(VARIABLE, [])
    end

    private_class_method :here?, :all
  end
  private_constant :OpenBlocks
end
