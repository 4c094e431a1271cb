#include "hub/hub_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/files/root_testing.h"
#include "hub/certificates.h"
#include "hub/hub_server_testing.h"
#include "hub/proxy.h"
#include "hub/repository.h"

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HubEnvironment;
using testing::TestRoot;

std::string error_of(auto&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.message() + " | " + error.where() + " | " + error.fix();
  }
  return "";
}

TEST(HubUrl, IsReadStrictly) {
  const std::optional<Url> url = parse_url("HTTPS://Hub.Example:8443/a/b?c=d#e");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->text(), "https://hub.example:8443/a/b?c=d");
  EXPECT_EQ(parse_url("http://[::1]:80/x")->text(), "http://[::1]/x");
  EXPECT_EQ(parse_url("https://h?x")->path, "/?x");
  for (const char* text : {"ftp://h/", "https://", "https://user@h/", "https://h:0/", "https://h:70000/", "https://h:/",
                           "https://h /", "https://h/a\nb", "h", "https://[::1", "https://h\\x"}) {
    EXPECT_FALSE(parse_url(text)) << text;
  }
  const Url base = *parse_url("https://h/a/b?c");
  EXPECT_EQ(resolve_url(base, "/x")->text(), "https://h/x");
  EXPECT_EQ(resolve_url(base, "x?y")->text(), "https://h/a/x?y");
  EXPECT_EQ(resolve_url(base, "//other/x")->text(), "https://other/x");
  EXPECT_EQ(resolve_url(base, "http://o/")->tls, false);
  EXPECT_FALSE(resolve_url(base, ""));
  EXPECT_FALSE(resolve_url(base, "javascript://x"));
}

TEST(HubUrl, LoopbackIsThisMachineAlone) {
  for (const char* text : {"http://localhost", "http://127.0.0.1:1", "http://127.1.2.3", "http://[::1]"}) {
    EXPECT_TRUE(parse_url(text)->loopback()) << text;
  }
  for (const char* text : {"http://127.example.org", "http://10.0.0.1", "http://localhost.example"}) {
    EXPECT_FALSE(parse_url(text)->loopback()) << text;
  }
}

TEST(HubSettings, FollowTheVariablesOfTheHubsPrograms) {
  const TestRoot root;
  HubEnvironment environment("", root.path());
  EXPECT_EQ(hub_settings().endpoint.origin(), "https://huggingface.co");
  EXPECT_EQ(hub_settings().cache, root / "hub");
  EXPECT_EQ(hub_settings().token, "");
  root.write("token", "hf_file\n");
  EXPECT_EQ(hub_settings().token, "hf_file");
  environment.set("HF_TOKEN", " hf_variable ");
  EXPECT_EQ(hub_settings().token, "hf_variable");
  environment.set("HF_HUB_CACHE", "$HF_HOME/${HF_HOME}/x$");
  EXPECT_EQ(hub_settings().cache.string(), root.path().string() + "/" + root.path().string() + "/x$");
  environment.set("HF_ENDPOINT", "https://mirror.example/hf/");
  EXPECT_EQ(hub_settings().address("api/x").text(), "https://mirror.example/hf/api/x");
  EXPECT_FALSE(hub_settings().offline);
  environment.set("HF_HUB_OFFLINE", "yes");
  EXPECT_TRUE(hub_settings().offline);
}

TEST(HubSettings, RefuseWhatWouldLeakAToken) {
  const TestRoot root;
  HubEnvironment environment("http://mirror.example", root.path());
  EXPECT_THAT(error_of([] { hub_settings(); }), AllOf(HasSubstr("has no TLS"), HasSubstr("HF_ENDPOINT")));
  environment.set("HF_ENDPOINT", "http://localhost:8080");
  EXPECT_EQ(hub_settings().endpoint.port, 8080);
  environment.set("HF_ENDPOINT", "https://user:secret@mirror.example");
  EXPECT_THAT(error_of([] { hub_settings(); }), HasSubstr("not an address of a hub"));
  environment.set("HF_ENDPOINT", "");
  environment.set("HF_TOKEN", "hf_a\r\nX-Other: b");
  EXPECT_THAT(error_of([] { hub_settings(); }), HasSubstr("the token"));
}

TEST(HubProxy, IsThatOfOtherPrograms) {
  const TestRoot root;
  HubEnvironment environment("", root.path());
  const Url url = *parse_url("https://hub.example/x");
  EXPECT_FALSE(proxy_for(url));
  environment.set("HTTPS_PROXY", "http://us%40er:pass@proxy.example:3128");
  ASSERT_TRUE(proxy_for(url));
  EXPECT_EQ(proxy_for(url)->host, "proxy.example");
  EXPECT_EQ(proxy_for(url)->port, 3128);
  EXPECT_EQ(proxy_for(url)->user, "us@er");
  EXPECT_EQ(proxy_for(url)->password, "pass");
  EXPECT_FALSE(proxy_for(*parse_url("http://hub.example/")));
  environment.set("https_proxy", "other.example:1");
  EXPECT_EQ(proxy_for(url)->host, "other.example");
  for (const char* none : {"*", "hub.example", ".example", "a, example", "hub.example:443", "*.example"}) {
    environment.set("NO_PROXY", none);
    EXPECT_FALSE(proxy_for(url)) << none;
  }
  for (const char* none : {"b.example", "ub.example", "hub.example:80", "hub.example.org"}) {
    environment.set("NO_PROXY", none);
    EXPECT_TRUE(proxy_for(url)) << none;
  }
  environment.set("https_proxy", "socks5://h:1");
  EXPECT_THAT(error_of([&] { proxy_for(url); }), AllOf(HasSubstr("not an http:// address"), HasSubstr("NO_PROXY")));
}

TEST(HubCertificates, AreThoseOfTheVariablesOrTheDistribution) {
  const TestRoot root;
  HubEnvironment environment("", root.path());
  root.write("ca.pem");
  environment.set("SSL_CERT_FILE", (root / "ca.pem").c_str());
  EXPECT_EQ(trusted_certificates().file, root / "ca.pem");
  environment.set("SSL_CERT_FILE", (root / "none.pem").c_str());
  EXPECT_THAT(error_of([] { trusted_certificates(); }), HasSubstr("SSL_CERT_FILE names no file"));
  environment.set("SSL_CERT_FILE", nullptr);
  environment.set("SSL_CERT_DIR", root.path().c_str());
  EXPECT_EQ(trusted_certificates().folder, root.path());
}

TEST(HubNames, AreIdsAndRevisions) {
  const std::optional<RepoName> name = parse_repo_name(RepoType::kModel, "Qwen/Qwen3-30B-A3B@refs/pr/1");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->repo.id, "Qwen/Qwen3-30B-A3B");
  EXPECT_EQ(name->revision, "refs/pr/1");
  EXPECT_EQ(name->text(), "Qwen/Qwen3-30B-A3B@refs/pr/1");
  EXPECT_EQ(parse_repo_name(RepoType::kModel, "a/b")->revision, "main");
  EXPECT_FALSE(parse_repo_name(RepoType::kModel, "gpt2"));
  EXPECT_TRUE(parse_repo_name(RepoType::kModel, "gpt2", true));
  for (const char* text :
       {"",         "/a/b",   "./a",  "../a", "a/..", "a/b/c", "a//b",     "a/b@",  "a/b@../x", "a/b@x y",
        "a/b@a//b", "a--b/c", "-a/b", "a/b-", "a/b.", "ä/b",   "a/b@x\ny", "a b/c", "a/b@/x",   "~/a"}) {
    EXPECT_FALSE(parse_repo_name(RepoType::kModel, text, true)) << text;
  }
}

TEST(HubNames, FilesStayInTheirFolder) {
  for (const char* path : {"config.json", "data/train-00000.parquet", "ä b.json", "a..b", "..."}) {
    EXPECT_TRUE(is_safe_file_name(path)) << path;
  }
  for (const std::string& path :
       {std::string(""), std::string("/etc/passwd"), std::string("../x"), std::string("a/../b"), std::string("a/"),
        std::string("a//b"), std::string("."), std::string("a\\b"), std::string("a\nb"), std::string("a\x1b[2J"),
        std::string("a\0b", 3), std::string("a\u202eb"), std::string(300, 'a'), std::string("\xff")}) {
    EXPECT_FALSE(is_safe_file_name(path)) << path;
  }
  EXPECT_TRUE(is_commit("0123456789abcdef0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("../../x"));
}

}  // namespace
}  // namespace hone
