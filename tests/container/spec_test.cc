// What is changed in a container's configuration, and which containers are left as they are.
#include "container/spec.h"

#include <gtest/gtest.h>

#include "container/notes.h"
#include "container/seccomp.h"

namespace gcr::container {
namespace {

constexpr const char* kKey = "0123456789abcdef0123456789abcdef";

Spec container() {
  return Spec::parse(R"({
    "process": {"args": ["/bin/program", "word"], "env": ["PATH=/bin", "A=b"]},
    "root": {"path": "rootfs"},
    "mounts": [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
    "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}})");
}

Spec inserted(Spec spec, std::optional<std::string> key = std::nullopt) {
  insert(spec, Insertion{"/l/gcr-init", "/l/libgcr-preload.so", std::move(key), true});
  return spec;
}

TEST(Spec, ArgumentsOfAContainerThatReceivesHaveTheKey) {
  EXPECT_EQ(inserted(container(), kKey)["process"]["args"],
            Spec::parse(R"(["/dev/.gcr/init", "receive", "0123456789abcdef0123456789abcdef",
                            "/bin/program", "word"])"));
  EXPECT_EQ(inserted(container())["process"]["args"],
            Spec::parse(R"(["/dev/.gcr/init", "run", "/bin/program", "word"])"));
}

TEST(Spec, ArgumentsTellWhetherTheFilterAllowsUserfaultfd) {
  const auto mode = [](const char* profile, bool allow) {
    Spec spec = container();
    spec["linux"]["seccomp"] = Spec::parse(profile);
    insert(spec, Insertion{"/l/gcr-init", "/l/libgcr-preload.so", std::nullopt, allow});
    return spec["process"]["args"][1].get<std::string>();
  };
  const char* refuses = R"({"defaultAction": "SCMP_ACT_ERRNO"})";
  EXPECT_EQ(mode(refuses, true), "run-tracked");
  EXPECT_EQ(mode(refuses, false), "run");
  EXPECT_EQ(mode(R"({"defaultAction": "SCMP_ACT_ALLOW"})", false), "run-tracked");
}

TEST(Spec, LibraryIsFirstInEveryList) {
  const auto preload = [](const char* variable) {
    Spec spec = container();
    spec["process"]["env"] = {variable};
    return inserted(spec)["process"]["env"].back().get<std::string>();
  };
  const std::string ours = "LD_PRELOAD=/dev/.gcr/libgcr-preload.so";
  EXPECT_EQ(preload("A=b"), ours);
  EXPECT_EQ(preload("LD_PRELOAD="), ours);
  EXPECT_EQ(preload("LD_PRELOAD=a.so b.so"), ours + ":a.so b.so");
  EXPECT_EQ(preload("LD_PRELOAD=a.so /dev/.gcr/libgcr-preload.so"),
            "LD_PRELOAD=a.so /dev/.gcr/libgcr-preload.so");
}

TEST(Spec, ContainerWithoutEnvironmentGetsOne) {
  Spec spec = container();
  spec["process"].erase("env");
  EXPECT_EQ(unfit(spec), std::nullopt);
  EXPECT_EQ(inserted(spec)["process"]["env"].size(), 1U);
}

TEST(Spec, OddConfigurationsAreLeftAlone) {
  EXPECT_EQ(out_of_scope(Spec::object()), "it has no process");
  for (const char* words : {"[]", "null", "[1]", "\"sh\"", "{}"}) {
    Spec spec = container();
    spec["process"]["args"] = Spec::parse(words);
    EXPECT_EQ(out_of_scope(spec), "it has no program") << words;
  }
  for (const char* part : {"null", "1", "[]", "{}", "[1, null, []]", "{\"a\": []}"}) {
    for (const char* name : {"mounts", "linux"}) {
      Spec spec = container();
      spec[name] = Spec::parse(part);
      EXPECT_TRUE(unfit(spec)) << name << part;
    }
    Spec spec = container();
    spec["annotations"] = spec["root"] = Spec::parse(part);
    EXPECT_FALSE(out_of_scope(spec)) << part;
    EXPECT_EQ(root_of(spec, "/b"), "") << part;
  }
  Spec spec = container();
  spec["process"]["env"] = {1};
  EXPECT_EQ(unfit(spec), "its environment is not a list");
  EXPECT_EQ(receive_key(spec).value(), std::nullopt);
}

TEST(Spec, MountsInItsFolderMakeAContainerUnfit) {
  for (const char* place : {"/dev/.gcr", "/dev/.gcr/init", "/dev//.gcr/./x/"}) {
    Spec spec = container();
    spec["mounts"].push_back({{"destination", place}, {"type", "bind"}, {"source", "/x"}});
    EXPECT_EQ(unfit(spec), "something is mounted on /dev/.gcr in it") << place;
  }
}

TEST(Spec, TextThatIsNoObjectIsAnError) {
  for (const char* text : {"", "[", "[]", "1", "{\"a\":}", "\"\xff\""}) {
    EXPECT_FALSE(parse_spec(text)) << text;
  }
}

TEST(Spec, RootIsInTheBundleUnlessItIsAbsolute) {
  Spec spec = container();
  EXPECT_EQ(root_of(spec, "/bundle"), "/bundle/rootfs");
  spec["root"]["path"] = "/var/image";
  EXPECT_EQ(root_of(spec, "/bundle"), "/var/image");
}

TEST(Notes, IdOfAContainerIsTheLastOneInItsControlGroup) {
  const std::string outer(64, 'a');
  const std::string inner = std::string(32, '0') + std::string(32, 'f');
  for (const std::string& group :
       {"/docker/" + inner, "/libpod_parent/libpod-" + inner + "/container",
        "machine.slice:libpod:" + inner, "/docker/" + outer + "/docker/" + inner,
        "/kubepods.slice/pod1234.slice/cri-containerd-" + inner + ".scope"}) {
    EXPECT_EQ(id_in_group(group), inner) << group;
  }
  for (const std::string& group : {std::string(), std::string("/user.slice"), "/x" + inner + "0",
                                   "/" + std::string(63, 'a'), "/" + std::string(64, 'A')}) {
    EXPECT_EQ(id_in_group(group), "") << group;
  }
}

/// A profile after the call is allowed in it.
std::string allowed(const char* profile) {
  Spec seccomp = Spec::parse(profile);
  allow_userfaultfd(seccomp);
  return seccomp.dump();
}

TEST(Seccomp, CallThatIsAllowedChangesNothing) {
  for (
      const char* profile :
      {R"({"defaultAction":"SCMP_ACT_ALLOW"})", R"({"defaultAction":"SCMP_ACT_LOG","syscalls":[]})",
       R"({"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","userfaultfd"],"action":"SCMP_ACT_ALLOW"}]})"}) {
    EXPECT_EQ(allowed(profile), profile);
  }
}

TEST(Seccomp, CallThatIsAllowedUnderConditionsIsAllowed) {
  EXPECT_EQ(
      allowed(
          R"({"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["userfaultfd"],"action":"SCMP_ACT_ALLOW","args":[{"index":0}]}]})"),
      R"({"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["userfaultfd"],"action":"SCMP_ACT_ALLOW"},{"names":["userfaultfd"],"action":"SCMP_ACT_ALLOW","args":[{"index":0}]}]})");
}

TEST(Seccomp, ProfileWithoutRulesGetsOne) {
  EXPECT_EQ(
      allowed(R"({"defaultAction":"SCMP_ACT_ERRNO"})"),
      R"({"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["userfaultfd"],"action":"SCMP_ACT_ALLOW"}]})");
}

TEST(Seccomp, RulesOfAProfileThatAllowsByDefaultLoseTheCall) {
  EXPECT_EQ(
      allowed(
          R"({"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["userfaultfd"],"action":"SCMP_ACT_KILL"},{"names":["a","userfaultfd"],"action":"SCMP_ACT_ERRNO"}]})"),
      R"({"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_ERRNO"}]})");
}

TEST(Seccomp, OddProfilesStayAsTheyAre) {
  for (const char* profile : {"null", "[]", R"({"defaultAction":"SCMP_ACT_ERRNO","syscalls":1})"}) {
    EXPECT_EQ(allowed(profile), profile);
  }
}

}  // namespace
}  // namespace gcr::container
