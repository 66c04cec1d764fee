# frozen_string_literal: true

module VolcanoLocks
  # Who holds a lock. Two are equal if both are free, or both held with the same fencing token.
  class Leadership
    include Value

    FIELDS = %i[held holder fencing_token since].freeze

    # @return [Boolean] whether the lock is held
    attr_reader :held
    alias held? held
    # @return [String, nil] the label of its holder
    attr_reader :holder
    # @return [Integer, nil] of the lease; nil while the lock is free
    attr_reader :fencing_token
    # @return [Time, nil] when the lease was acquired, or when the lock became free, if known
    attr_reader :since

    def initialize(held:, holder: nil, fencing_token: nil, since: nil)
      @held = held
      @holder = holder
      @fencing_token = fencing_token
      @since = since
      freeze
    end

    protected

    # What distinguishes two leaderships.
    def identity
      [held, fencing_token]
    end
  end

  # The latest leadership of one lock, from views and events in any order. The fencing token, which rises with each
  # acquisition, says which is newer.
  class LeadershipTracker
    BEGINS = %w[acquired renewed].freeze
    ENDS = %w[released expired force_released].freeze

    # @return [Boolean] whether the event reports a change but not of which lease: then the lock has to be read
    def self.unusable?(event)
      [*BEGINS, *ENDS].include?(event.kind) && !Arguments.safe_integer?(event.body["fencing_token"])
    end

    # @return [Leadership, nil]
    attr_reader :latest

    def initialize
      @latest = nil
      @newest = 0
      @ended = 0
    end

    # Apply a view of the lock, unless its lease is known to have ended since.
    def update_from_view(view)
      token = view.fencing_token || @newest
      return begin_lease(token, view.holder, view.acquired_at) if view.held? && token > @ended

      end_lease([token, @ended].max, nil)
    end

    # Apply an event, unless it is older than what is known. Other events are ignored.
    def update_from_event(event)
      body = event.body
      token = body["fencing_token"]
      return unless Arguments.safe_integer?(token)

      if BEGINS.include?(event.kind) && token > @newest
        began_at = event.kind == "acquired" ? time_of(body) : nil
        begin_lease(token, body["holder"].is_a?(String) ? body["holder"] : nil, began_at)
      elsif ENDS.include?(event.kind) && token >= @newest
        end_lease(token, time_of(body))
      end
    end

    private

    def begin_lease(token, holder, since)
      @newest = token
      @latest = Leadership.new(held: true, holder: holder, fencing_token: token, since: since)
    end

    def end_lease(token, since)
      @newest = @ended = token
      @latest = Leadership.new(held: false, since: since) if @latest.nil? || @latest.held?
    end

    def time_of(body)
      Messages.parse_date(body["at"])
    rescue ArgumentError, TypeError
      nil
    end
  end
end
