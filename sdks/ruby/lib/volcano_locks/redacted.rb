# frozen_string_literal: true

module VolcanoLocks
  # Keeps a secret out of everything that prints, dumps or serialises its object: they all show `inspect` (SDK-8).
  # The class that includes it defines `inspect`. A lease is stored on purpose with `to_record`.
  module Redacted
    # @return [String] the same as `inspect`
    def to_s
      inspect
    end

    # For `pp`.
    def pretty_print(printer)
      printer.text(inspect)
    end

    # For JSON: the text of `inspect`.
    def to_json(*state)
      inspect.to_json(*state)
    end

    # For frameworks that make JSON of instance variables.
    def as_json(*)
      inspect
    end

    # For YAML.
    def encode_with(coder)
      coder["inspect"] = inspect
    end

    # Refuses `Marshal.dump`.
    def marshal_dump
      raise TypeError, "#{self.class} holds a secret and cannot be dumped"
    end
  end
end
