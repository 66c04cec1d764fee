# frozen_string_literal: true

# Prints the reference of the Ruby client as Markdown, from its YARD comments: ruby docs/site/ruby_reference.rb
require "yard"

YARD::Logger.instance.show_progress = false
YARD.parse(Dir[File.expand_path("../../sdks/ruby/lib/**/*.rb", __dir__)])

SECTIONS = {
  "Client" => "Client and operations", "Locks" => nil, "ExclusiveFunctions" => nil, "LockGuard" => "During a block",
  "Lease" => "Values", "LockState" => nil, "LockView" => nil, "Leadership" => nil,
  "Testing::FakeClient" => "Test kit", "Testing::FakeLocks" => nil, "Testing::ManualClock" => nil,
  "Testing::FaultyTransport" => nil, "ActiveJob::ClassMethods" => "Integrations", "Sidekiq::ClassMethods" => nil,
  "Rake" => nil
}.freeze

def prose(text)
  text.gsub(/\{([\w:#.]+)\}/) { "`#{Regexp.last_match(1)}`" }
end

def tags(object, name, title)
  found = object.tags(name)
  return [] if found.empty?

  lines = found.map do |tag|
    types = tag.types ? "`#{tag.types.join(', ')}`" : nil
    words = [tag.name && "**#{tag.name}**", types, prose(tag.text.to_s).tr("\n", " ")].compact.reject(&:empty?)
    "- #{words.join(' ')}"
  end
  ["#{title}:", "", *lines, ""]
end

def documented(object)
  lines = [prose(object.docstring.to_s), ""]
  object.tags(:example).each { |tag| lines.push("```ruby", tag.text, "```", "") }
  lines + tags(object, :param, "Arguments") + tags(object, :yieldparam, "The block gets") +
    tags(object, :return, "Returns") + tags(object, :raise, "Raises")
end

def public_methods_of(object)
  own = object.meths(inherited: false, included: false, visibility: :public)
  own.reject { |one| one.docstring.blank?(false) || one.has_tag?(:api) || one.name.to_s.match?(/\A(inspect|to_s|initialize_copy|.*=)\z/) }
end

puts "# Ruby client", "", "Generated from the comments of the gem. The guide: [volcano-locks for Ruby](../clients/ruby.md).", ""
SECTIONS.each do |name, heading|
  object = YARD::Registry.at("VolcanoLocks::#{name}")
  abort "VolcanoLocks::#{name} is gone" unless object
  puts "## #{heading}", "" if heading
  puts "### #{name}", "", *documented(object)
  public_methods_of(object).each do |method|
    called = method.name == :initialize ? "new" : method.name
    next if called == "new" && name != "Client"

    mark = method.scope == :class || called == "new" ? "." : "#"
    signature = method.signature.to_s.sub(/\Adef (self\.)?/, "").sub(/\Ainitialize/, "new")
    puts "#### `#{name}#{mark}#{called}`", "", "```ruby", signature, "```", "", *documented(method)
  end
end

puts "## Errors", ""
errors = YARD::Registry.all(:class).select do |one|
  one.namespace.path == "VolcanoLocks" && one.inheritance_tree.map(&:path).include?("VolcanoLocks::VolcanoError")
end
errors.each { |one| puts "### #{one.name}", "", "Subclass of `#{one.superclass.path}`.", "", prose(one.docstring.to_s), "" }
