// The estimates and findings for a member without the preload library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "migrate-agent/preflight/examine/examination.h"
#include "src/base/units.h"

namespace gcr::migration {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(SlowDowntime, GrowsWithVramMemoryAndSlowerLinks) {
  const milliseconds least = preflight::slow_downtime(0, 0, 0);
  EXPECT_GT(least, milliseconds(0));
  const milliseconds memory = preflight::slow_downtime(0, 4 * kGiB, 0);
  const milliseconds vram = preflight::slow_downtime(4 * kGiB, 0, 0);
  EXPECT_GT(memory, least);
  EXPECT_GT(vram, memory) << "VRAM uses the same link, and goes through the driver";
  EXPECT_EQ(preflight::slow_downtime(4 * kGiB, 0, 100'000'000'000), vram)
      << "the link is not the limit";

  EXPECT_GE(preflight::slow_downtime(4 * kGiB, 0, kGiB), milliseconds(4000));
}

std::vector<std::string> findings_of(const preflight::DriverAlone& member,
                                     const proto::MigrateRequest& request) {
  findings::Findings findings(findings::Side::kSource);
  preflight::check_slow_downtime(member, request, findings);
  std::vector<std::string> said;
  for (const proto::Finding& finding : findings.list()) said.push_back(findings::note_of(finding));
  return said;
}

TEST(SlowDowntime, IsABlockerUnlessAllowedAndWithinTheLimit) {
  const preflight::DriverAlone member{.pid = ::getpid(),
                                      .vram = {{Uuid::random(), kGiB}, {Uuid::random(), kGiB}},
                                      .downtime = milliseconds(3210)};
  proto::MigrateRequest request;
  EXPECT_THAT(findings_of(member, request),
              ElementsAre(AllOf(HasSubstr("up to 2 GiB of VRAM"), HasSubstr("for about 3.2 s"),
                                HasSubstr("[no-library]"))));
  request.set_downtime_limit_ms(300);
  EXPECT_THAT(findings_of(member, request), ElementsAre(HasSubstr("[no-library]")));
  request.set_allow_slow(true);
  EXPECT_THAT(findings_of(member, request),
              ElementsAre(HasSubstr("[no-library-slow]"),
                          AllOf(HasSubstr("about 3.2 s is expected, and --downtime-limit allows "
                                          "0.3 s"),
                                HasSubstr("[downtime-limit]"))));
  request.clear_downtime_limit_ms();
  EXPECT_THAT(findings_of(member, request), ElementsAre(HasSubstr("[no-library-slow]")));
  request.set_strict(true);
  EXPECT_THAT(findings_of(member, request), testing::Contains(HasSubstr("[downtime-limit]")));
  request.set_downtime_limit_ms(4000);
  EXPECT_THAT(findings_of(member, request), ElementsAre(HasSubstr("[no-library-slow]")));
}

}  // namespace
}  // namespace gcr::migration
