// The agent's parser of a plugin's lines in CRIU's log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "migrate-agent/criu/launch/plugin.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kName[] = "amdgpu_plugin";

class PluginLog : public testing::Test {
 protected:
  void log(const std::string& text) { std::ofstream(file_, std::ios::trunc) << text; }
  Directory directory_;
  const std::filesystem::path file_ = directory_.path() / "restore.log";
};

/// Two tasks that restore concurrently; the first one tries two places for its GPU.
TEST_F(PluginLog, LastMapOfEachTaskCounts) {
  log("(00.000100) amdgpu_plugin: Value str: 256M\n"
      "(00.010000)     17: amdgpu_plugin: ===Maps===============\n"
      "(00.010001)     17: amdgpu_plugin: GPU: 0x6F39 -> 0x1111\n"
      "(00.010002)     17: amdgpu_plugin: CPU: 00 -> 00\n"
      "(00.010003)     17: amdgpu_plugin: ======================\n"
      "(00.010004)     17: amdgpu_plugin: Maps after all nodes matched\n"
      "(00.010005)     17: amdgpu_plugin: ===Maps===============\n"
      "(00.010006)     23: amdgpu_plugin: ===Maps===============\n"
      "(00.010007)     17: amdgpu_plugin: GPU: 0x6F39 -> 0xAB12\n"
      "(00.010008)     23: amdgpu_plugin: GPU: 0x1A -> 0x0B\n"
      "(00.010009)     17: amdgpu_plugin: GPU: 0x12345 -> 0x54321\n"
      "(00.010010)     17: amdgpu_plugin: ======================\n");
  EXPECT_THAT(plugin_maps(file_, kName),
              ElementsAre(PluginMap{{0x6f39, 0xab12}, {0x12345, 0x54321}}, PluginMap{{0x1a, 0xb}}));
}

TEST_F(PluginLog, OnlyLinesOfThePluginCount) {
  log("(00.010000)     17: other_plugin: ===Maps===============\n"
      "(00.010001)     17: other_plugin: GPU: 0x6F39 -> 0x1111\n"
      "(00.010002)     17: Opening /tmp/x amdgpu_plugin: ===Maps===============\n"
      "amdgpu_plugin: ===Maps===============\n"
      "(00.010003)     17: amdgpu_plugin: GPU: 0x6F39 -> 0x1111\n");
  EXPECT_THAT(plugin_maps(file_, kName), IsEmpty());
  EXPECT_THAT(plugin_maps(directory_.path() / "none", kName), IsEmpty());
}

TEST_F(PluginLog, TruncatedLinesAreIgnored) {
  log("(00.010000)     17: amdgpu_plugin: ===Maps===============\n"
      "(00.010001)     17: amdgpu_plugin: GPU: 0x6F39 -> 0x\n"
      "(00.010001)     17: amdgpu_plugin: GPU: 0x6F39\n"
      "(00.010001)     17: amdgpu_plugin: GPU: 0x\n"
      "(00.010001)     17: amdgpu_plugin: GPU: 0xFFFFFFFFF -> 0x1\n");
  EXPECT_THAT(plugin_maps(file_, kName), ElementsAre(PluginMap{}));
}

TEST_F(PluginLog, FirstErrorOfThePluginIsFound) {
  log("(00.000100) Error (criu/files.c:12): not the plugin's\n"
      "(00.000150) Error (amdgpu_plugin.c:307): amdgpu_plugin: Ignoring invalid value for "
      "KFD_MAX_BUFFER_SIZE=256M, expecting a positive integer\n");
  EXPECT_EQ(plugin_error(file_, kName), "");
  log("(00.000100) Warn  (criu/files.c:12): amdgpu_plugin: only a warning\n"
      "(00.000200)     17: Error (amdgpu_plugin.c:1751): amdgpu_plugin: Failed to restore "
      "(ret:-22)\n"
      "(00.000300) Error (amdgpu_plugin.c:1): amdgpu_plugin: later\n");
  EXPECT_EQ(plugin_error(file_, kName),
            "Error (amdgpu_plugin.c:1751): amdgpu_plugin: Failed to restore (ret:-22)");
}

TEST_F(PluginLog, EveryGpuMustMatchThePlan) {
  const PluginMap planned{{0x10, 0xa0}, {0x20, 0xb0}};
  EXPECT_TRUE(check_plugin_maps(std::vector{PluginMap{{0x10, 0xa0}}, planned}, planned));
  const auto other = check_plugin_maps(std::vector{PluginMap{{0x10, 0xb0}}}, planned);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message(),
            "CRIU's plugin has put GPU 0x0010 of the source on 0x00b0; planned was 0x00a0");
  EXPECT_FALSE(check_plugin_maps(std::vector{PluginMap{{0x30, 0xa0}}}, planned));
  EXPECT_FALSE(check_plugin_maps({}, planned));
  EXPECT_TRUE(check_plugin_maps({}, {}));
}

}  // namespace
}  // namespace gcr::criu::test
