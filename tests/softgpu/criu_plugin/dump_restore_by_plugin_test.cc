// A HIP process on the software GPU is dumped and restored by CRIU with a plugin, without a driver
// call for the checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/criu/program.h"
#include "tests/softgpu/criu_plugin/plugin_copies.h"
#include "tests/softgpu/face.h"
#include "tests/softgpu/machines.h"
#include "tests/support/wait_until.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;
using softgpu::test::Face;
using softgpu::test::library_of;
using softgpu::test::Machine;

constexpr std::chrono::seconds kAnswerPatience{60};
const std::string kBufferBytes = "8388608";

/// subject.cc, with a FIFO as standard input and a file as output: both are moved with it.
class GpuProgram {
 public:
  GpuProgram(const fs::path& directory, const Machine& machine)
      : commands_(directory / "commands"), answers_(directory / "answers") {
    EXPECT_EQ(::mkfifo(commands_.c_str(), 0600), 0);
    std::vector<std::string> command{"/usr/bin/env",
                                     std::string("LD_LIBRARY_PATH=") + SOFTGPU_DIRECTORY};
    for (const std::string& variable : machine.environment()) command.push_back(variable);
    command.insert(command.end(),
                   {"/bin/sh", "-c",
                    std::string("exec ") + SOFTGPU_SUBJECT + " " + library_of(Face::kHip) + " <>" +
                        commands_.string() + " >>" + answers_.string()});
    program_ = std::make_unique<Program>(command);
    EXPECT_EQ(next_answer(), "ready");
  }

  pid_t pid() const { return program_->pid(); }
  Program& program() { return *program_; }

  std::string ask(const std::string& command) {
    std::ofstream(commands_) << command << std::endl;
    return next_answer();
  }

 private:
  std::string next_answer() {
    const auto deadline = std::chrono::steady_clock::now() + kAnswerPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      const std::string all = content_of(answers_);
      const std::size_t end = all.find('\n', read_);
      if (end != std::string::npos) {
        const std::string line = all.substr(read_, end - read_);
        read_ = end + 1;
        return line;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return "no answer";
  }

  const fs::path commands_;
  const fs::path answers_;
  std::size_t read_ = 0;
  std::unique_ptr<Program> program_;
};

/// A restoring CRIU has its own mount namespace, so the devices are mounted before.
void mount_devices(const Machine& machine, const std::string& size) {
  const std::string device = machine.store() + "/" + machine.uuid(0);
  fs::create_directories(device);
  ASSERT_EQ(::mount("softgpu", device.c_str(), "tmpfs", 0, ("size=" + size).c_str()), 0);
}

class ByPlugin : public testing::Test {
 protected:
  void SetUp() override {
    mount_devices(source_, "64M");
    mount_devices(destination_, "64M");
    const auto criu = facts(criu_command());
    ASSERT_TRUE(criu) << criu.error().message();
    for (const std::uint32_t hooks : {10, 12, 13, 15}) {
      copy_plugin(file_, hooks);
      if (Plugin::open(file_, criu->version)) {
        release_ = criu->version;
        return;
      }
    }
    FAIL() << "no plugin fits CRIU " << criu->version;
  }

  /// CRIU on a machine, with the plugin's directory configured.
  Command command_on(const Machine& machine) const {
    Command command = criu_command();
    command.plugins = file_.parent_path();
    command.plugin_environment = machine.environment();
    return command;
  }

  std::shared_ptr<const Plugin> plugin(const Command& command) const {
    auto opened = open_plugin(command, "amdgpu_plugin.so", release_);
    EXPECT_TRUE(opened) << opened.error().message();
    return opened ? *opened : nullptr;
  }

  void fill_buffers(GpuProgram& program) {
    ASSERT_EQ(program.ask("context 0"), "0 0");
    ASSERT_EQ(program.ask("alloc " + kBufferBytes), "0 0");
    ASSERT_EQ(program.ask("alloc " + kBufferBytes), "0 1");
    ASSERT_EQ(program.ask("fill 0 17"), "0");
    ASSERT_EQ(program.ask("fill 1 91"), "0");
  }

  void expect_buffers(GpuProgram& program) {
    EXPECT_EQ(program.ask("holds 0 17"), "0 1");
    EXPECT_EQ(program.ask("holds 1 91"), "0 1");
    EXPECT_EQ(program.ask("fill 0 5"), "0");
    EXPECT_EQ(program.ask("holds 0 5"), "0 1");
  }

  Status dump(const GpuProgram& program, const Command& command) {
    DumpOptions options;
    options.plugin = plugin(command);
    GCR_ASSIGN(auto prepared,
               PreparedDump::create(command, program.pid(), directory_.make("logs"), options));
    GCR_ASSIGN(const auto credentials,
               prepared.run([this](const std::string& name, UniqueFd content) -> Status {
                 std::ofstream out(images_ / name, std::ios::binary);
                 char bytes[65536];
                 ssize_t got = 0;
                 while ((got = ::read(content.get(), bytes, sizeof(bytes))) > 0) {
                   out.write(bytes, got);
                 }
                 return {};
               }));
    EXPECT_FALSE(credentials.empty());
    return {};
  }

  Result<RestoredTree> restore(const Command& command, PluginMap planned) {
    RestoreOptions options;
    options.plugin = plugin(command);
    options.planned = std::move(planned);
    const fs::path first = images_ / "inventory.img";
    const std::string inventory = content_of(first);
    auto prepared = PreparedRestore::create(command, images_, {}, std::move(options));
    std::ofstream(first, std::ios::binary) << inventory;
    if (!prepared) return prepared.error();
    return prepared->run(own_rights(images_));
  }

  void kill(GpuProgram& program) {
    ASSERT_TRUE(kill_stopped(program.program().process()));
    program.program().reap();
  }

  Directory directory_;
  std::uint32_t release_ = 0;  ///< of CRIU
  const fs::path images_ = directory_.make("images");
  const fs::path file_ = directory_.make("plugins") / "amdgpu_plugin.so";
  const Machine source_{{{"7cf529dea4b3aaaa", "64M"}}};
  const Machine destination_{{{"7cf529dea4b3bbbb", "64M"}}};
};

TEST_F(ByPlugin, ProcessResumesOnAnotherMachine) {
  GpuProgram program(directory_.path(), source_);
  fill_buffers(program);
  const Status dumped = dump(program, command_on(source_));
  ASSERT_TRUE(dumped) << dumped.error().message();
  EXPECT_TRUE(fs::exists(images_ / "amdgpu-softgpu.img"));
  kill(program);
  EXPECT_EQ(source_.used_bytes(0), 0U);
  const auto tree = restore(command_on(destination_), {{0xaaaa, 0xbbbb}});
  ASSERT_TRUE(tree) << tree.error().message();
  EXPECT_EQ(state_of(tree->pid()), 'T');
  EXPECT_GE(destination_.used_bytes(0), 2 * std::stoul(kBufferBytes));
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_buffers(program);
  EXPECT_EQ(program.ask("uuid 0"), "0 " + destination_.uuid(0));
}

/// As after a failed migration.
TEST_F(ByPlugin, ProcessResumesWhereItWasDumped) {
  GpuProgram program(directory_.path(), source_);
  fill_buffers(program);
  const Status dumped = dump(program, command_on(source_));
  ASSERT_TRUE(dumped) << dumped.error().message();
  EXPECT_EQ(state_of(program.pid()), 'T');
  ASSERT_TRUE(resume_stopped(program.program().process()));
  expect_buffers(program);
  EXPECT_EQ(program.ask("uuid 0"), "0 " + source_.uuid(0));
}

/// As if CRIU has stopped a thread within a call.
TEST_F(ByPlugin, RunningWorkIsWaitedFor) {
  GpuProgram program(directory_.path(), source_);
  fill_buffers(program);
  ASSERT_EQ(program.ask("busy 2000"), "0");
  const Status dumped = dump(program, command_on(source_));
  ASSERT_TRUE(dumped) << dumped.error().message();
  ASSERT_TRUE(resume_stopped(program.program().process()));
  expect_buffers(program);
}

TEST_F(ByPlugin, UnplannedGpuFailsTheRestore) {
  GpuProgram program(directory_.path(), source_);
  fill_buffers(program);
  ASSERT_TRUE(dump(program, command_on(source_)));
  kill(program);
  const auto tree = restore(command_on(destination_), {{0xaaaa, 0xcccc}});
  ASSERT_FALSE(tree);
  EXPECT_THAT(tree.error().message(), testing::HasSubstr("GPU 0xaaaa of the source on 0xbbbb"));
  // The resources of a killed process are freed a little later.
  gcr::test::wait_until([&] { return destination_.used_bytes(0) == 0U; });
  EXPECT_EQ(destination_.used_bytes(0), 0U);
}

/// CRIU reports success.
TEST_F(ByPlugin, FailingPluginFailsTheRestore) {
  GpuProgram program(directory_.path(), source_);
  fill_buffers(program);
  ASSERT_TRUE(dump(program, command_on(source_)));
  kill(program);
  const Machine small{{{"7cf529dea4b3bbbb", "2M"}}};
  mount_devices(small, "2M");
  const auto tree = restore(command_on(small), {{0xaaaa, 0xbbbb}});
  ASSERT_FALSE(tree);
  EXPECT_THAT(tree.error().message(), testing::HasSubstr("amdgpu_plugin: process"));
}

TEST_F(ByPlugin, RestoreNeedsThePluginOfTheDump) {
  GpuProgram program(directory_.path(), source_);
  fill_buffers(program);
  ASSERT_TRUE(dump(program, command_on(source_)));
  kill(program);
  EXPECT_FALSE(gcr::criu::restore(criu_command(), images_));
}

/// The copy is in its own namespaces, which CRIU enters with all libraries that it has loaded.
TEST_F(ByPlugin, PluginIsLoadedInTheAgentsNamespaces) {
  GpuProgram program(directory_.path(), source_);
  fill_buffers(program);
  ASSERT_TRUE(dump(program, command_on(source_)));
  kill(program);
  auto tree = restore(command_on(destination_), {{0xaaaa, 0xbbbb}});
  ASSERT_TRUE(tree) << tree.error().message();
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_buffers(program);
  fs::remove_all(images_);
  directory_.make("images");
  DumpOptions options;
  const Command command = command_on(destination_);
  options.plugin = plugin(command);
  auto prepared = PreparedDump::create(command, tree->pid(), images_, options);
  ASSERT_TRUE(prepared) << prepared.error().message();
  fs::remove(file_);
  const auto dumped = prepared->run(to_files(images_));
  ASSERT_TRUE(dumped) << dumped.error().message();
  tree->kill();
}

}  // namespace
}  // namespace gcr::criu::test
