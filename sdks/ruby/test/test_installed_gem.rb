# frozen_string_literal: true

require "minitest/autorun"
require "open3"
require "rbconfig"
require "tmpdir"

# The gem as users install it: built, installed into its own directory, and required from there.
class TestInstalledGem < Minitest::Test
  HERE = File.expand_path("..", __dir__)
  CLEAN = { "RUBYOPT" => nil, "RUBYLIB" => nil, "BUNDLE_GEMFILE" => nil }.freeze

  def test_the_installed_gem_works
    Dir.mktmpdir do |home|
      gem = File.join(home, "volcano_locks.gem")
      run_clean({}, "gem", "build", "volcano_locks.gemspec", "--output", gem)
      run_clean({}, "gem", "install", "--local", "--no-document", "--install-dir", home, gem)
      out = run_clean({ "GEM_HOME" => home, "GEM_PATH" => home }, RbConfig.ruby, "-w", "-e", <<~RUBY)
        require "volcano_locks"
        abort "the test kit is loaded although it was not required" if defined?(VolcanoLocks::Testing)
        require "volcano_locks/testing"
        abort "not from the gem" unless $LOADED_FEATURES.grep(%r{/volcano_locks\\.rb}).all? { |file| file.start_with?("#{File.realpath(home)}") }
        client = VolcanoLocks::Testing::FakeClient.new
        puts client.locks.with_lock("installed", ttl: 30) { |guard| guard.lost? }
        puts Gem.loaded_specs["volcano_locks"].dependencies.length
        puts Dir.children(Gem.loaded_specs["volcano_locks"].gem_dir).sort.join(" ")
      RUBY
      assert_equal ["false", "0", ".yardopts LICENSE README.md lib sig"], out.lines(chomp: true), "and no Ruby warning"
    end
  end

  private

  def run_clean(environment, *command)
    out, err, status = Open3.capture3({ **CLEAN, **environment }, *command, chdir: HERE)
    assert_predicate status, :success?, out + err
    out + err.gsub(/^WARNING: .*\n/, "")
  end
end
