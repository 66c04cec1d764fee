# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # What the fake tells those who watch: server-sent events with ids, from a bounded buffer (EVENT rules). Nothing
    # here is guarded: {FakeLocks} does that.
    class Stories
      KEPT_MAX = 1_000
      COMMENT_SECONDS = 15.0
      COMMENT = ": still here\n\n"

      # One event as it was told.
      Told = Struct.new(:number, :key, :text)
      # One who hears.
      Hearer = Struct.new(:number, :signal, :ended, :comment_at)

      def initialize
        @epoch = 1
        @number = 0
        @kept = []
        @hearers = []
      end

      # Keep it, and wake who hears.
      def tell(key, kind, body)
        @number += 1
        @kept << Told.new(@number, key, block(@number, kind, body))
        @kept.shift if @kept.length > KEPT_MAX
        @hearers.each { |hearer| hearer.signal.set }
      end

      # End all streams and forget everything: ids of before are unknown.
      def restart
        @epoch += 1
        @kept.clear
        @hearers.each do |hearer|
          hearer.ended = true
          hearer.signal.set
        end
      end

      # One more who hears, from behind `last_id` or from now on; and what is said first.
      def join(last_id, now, date)
        epoch, number = last_id.to_s.split("-", 2)
        known = epoch == @epoch.to_s && /\A\d+\z/.match?(number.to_s)
        hearer = Hearer.new(known ? number.to_i : @number, Signal.new, false, now + COMMENT_SECONDS)
        @hearers << hearer
        first = ": hello\nid: #{id_of(hearer.number)}\nretry: 1000\n\n"
        return [hearer, first] if last_id.nil? || known

        [hearer, first + block(hearer.number, "reset", { at: date, why: "unknown_id" })]
      end

      # What they have not heard of what they want, or a comment when it is time for one.
      def news(hearer, now, &wanted)
        hearer.signal.clear
        told = @kept.select { |one| one.number > hearer.number }
        hearer.number = told.last.number unless told.empty?
        text = told.select { |one| wanted.call(one.key) }.map(&:text).join
        return text unless text.empty? && now >= hearer.comment_at

        hearer.comment_at += COMMENT_SECONDS
        COMMENT
      end

      # They hear no more.
      def leave(hearer)
        @hearers.delete_if { |other| other.equal?(hearer) }
      end

      # How many hear now.
      def hearers
        @hearers.length
      end

      private

      def block(number, kind, body)
        "id: #{id_of(number)}\nevent: #{kind}\ndata: #{JSON.generate(body)}\n\n"
      end

      def id_of(number)
        "#{@epoch}-#{number}"
      end
    end
  end
end
