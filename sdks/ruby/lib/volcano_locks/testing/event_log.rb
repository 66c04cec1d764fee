# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # The fake's events for watchers: server-sent events with ids, from a bounded buffer (EVENT rules). Not thread-safe:
    # {FakeLocks} synchronizes.
    class EventLog
      EVENTS_MAX = 1_000
      COMMENT_SECONDS = 15.0
      COMMENT = ": still here\n\n"

      # One published event.
      StoredEvent = Struct.new(:number, :key, :text)
      # One open event stream and how far it has read.
      Subscriber = Struct.new(:number, :signal, :ended, :comment_at)

      def initialize
        @epoch = 1
        @number = 0
        @events = []
        @subscribers = []
      end

      # Store an event and wake the subscribers.
      def publish(key, kind, body)
        @number += 1
        @events << StoredEvent.new(@number, key, event_text(@number, kind, body))
        @events.shift if @events.length > EVENTS_MAX
        @subscribers.each { |subscriber| subscriber.signal.set }
      end

      # End all streams and forget all events, so that older ids are unknown.
      def restart
        @epoch += 1
        @events.clear
        @subscribers.each do |subscriber|
          subscriber.ended = true
          subscriber.signal.set
        end
      end

      # Add a subscriber that reads after `last_id`, or from now on. Returns it and the stream's first text.
      def subscribe(last_id, now, date)
        epoch, number = last_id.to_s.split("-", 2)
        known = epoch == @epoch.to_s && /\A\d+\z/.match?(number.to_s)
        subscriber = Subscriber.new(known ? number.to_i : @number, Signal.new, false, now + COMMENT_SECONDS)
        @subscribers << subscriber
        first = ": hello\nid: #{id_of(subscriber.number)}\nretry: 1000\n\n"
        return [subscriber, first] if last_id.nil? || known

        [subscriber, first + event_text(subscriber.number, "reset", { at: date, why: "unknown_id" })]
      end

      # The subscriber's unread events whose keys it wants, or a comment if one is due.
      def next_text(subscriber, now, &wanted)
        subscriber.signal.clear
        unread = @events.select { |event| event.number > subscriber.number }
        subscriber.number = unread.last.number unless unread.empty?
        text = unread.select { |event| wanted.call(event.key) }.map(&:text).join
        return text unless text.empty? && now >= subscriber.comment_at

        subscriber.comment_at += COMMENT_SECONDS
        COMMENT
      end

      # Remove a subscriber.
      def unsubscribe(subscriber)
        @subscribers.delete_if { |other| other.equal?(subscriber) }
      end

      # The number of subscribers.
      def subscribers
        @subscribers.length
      end

      private

      def event_text(number, kind, body)
        "id: #{id_of(number)}\nevent: #{kind}\ndata: #{JSON.generate(body)}\n\n"
      end

      def id_of(number)
        "#{@epoch}-#{number}"
      end
    end
  end
end
