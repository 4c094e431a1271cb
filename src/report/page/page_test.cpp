#include "report/page/page.h"

#include <gmock/gmock.h>
#include <openssl/evp.h>

#include <fstream>
#include <functional>

#include "core/base/error.h"
#include "core/text/json.h"
#include "report/folder_testing.h"
#include "report/page/run_record.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t at = text.find(begin);
  EXPECT_NE(at, std::string::npos) << begin;
  const size_t from = at + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

std::string data_of(const std::string& page) {
  return between(page, "<script type=\"application/json\" id=\"data\">", "</script>");
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Page, HostileTextStaysText) {
  const std::string hostile = "</script><script>alert(1)</script><!-- ]]> \" ' ` & \u2028 \u2029 \x01 {style} {data}";
  const Json data = {{"kind", "run"}, {"runs", {{{"name", hostile}, {hostile, "key"}}}}};
  const std::string page = page_html(data), plain = page_html(Json{{"kind", "run"}});
  EXPECT_EQ(Json::parse(data_of(page)), data) << "the page has what was given";
  const std::string embedded = data_of(page);
  for (const char c : embedded) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << static_cast<int>(c);
  EXPECT_THAT(embedded, Not(HasSubstr("<")));
  EXPECT_THAT(embedded, Not(HasSubstr(">")));
  EXPECT_THAT(embedded, Not(HasSubstr("&")));
  EXPECT_EQ(count(page, "<script"), count(plain, "<script"));
  EXPECT_EQ(count(page, "</script"), count(plain, "</script"));
}

TEST(Page, BytesThatAreNotUtf8AreReplaced) {
  const std::string page = page_html(Json{{"name", "a\xff\xc3"}});
  EXPECT_EQ(Json::parse(data_of(page))["name"], "a\ufffd\ufffd");
}

TEST(Page, ItsPolicyAllowsItsOwnStyleAndScriptAlone) {
  const std::string page = page_html(Json::object());
  const auto hash = [](const std::string& text) {
    unsigned char digest[EVP_MAX_MD_SIZE], encoded[2 * EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
    const int length = EVP_EncodeBlock(encoded, digest, static_cast<int>(size));
    return "'sha256-" + std::string(reinterpret_cast<const char*>(encoded), static_cast<size_t>(length)) + "'";
  };
  const std::string policy = between(page, "Content-Security-Policy\" content=\"", "\"");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("style-src " + hash(between(page, "<style>", "</style>")) + ";"));
  EXPECT_THAT(policy, HasSubstr("script-src " + hash(between(page, "<script>", "</script>")) + ";"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
}

TEST(Page, ItAsksForNothingOutside) {
  const std::string page = page_html(Json::object());
  // The one address is the name of SVG's namespace.
  EXPECT_EQ(count(page, "http"), count(page, "http://www.w3.org/2000/svg") + count(page, "http-equiv"));
  for (const char* part : {" src=", "@import", "url(", "fetch(", "XMLHttpRequest", "innerHTML", "outerHTML",
                           "insertAdjacentHTML", "document.write", "eval(", "Function("}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
}

class PageOfARun : public testing::Test {
 protected:
  void write(const std::string& name, const std::function<void(std::ofstream&)>& fill) const {
    std::ofstream file(folder_ / name);
    fill(file);
  }

  TestFolder folder_;
};

TEST_F(PageOfARun, AHundredThousandStepsOfALargeModelFit) {
  write("metrics.jsonl", [](std::ofstream& file) {
    for (int step = 1; step <= 100'000; ++step) {
      file << "{\"step\":" << step;
      for (const char* name :
           {"loss", "grad_norm", "learning_rate", "tokens_per_second", "memory/max_alloc", "entropy"})
        file << ",\"" << name << "\":" << 1.0 / step + 0.123456789;
      for (int set = 0; set < 20; ++set) file << ",\"loss/set" << set << "\":" << 1.0 / (step + set);
      file << "}\n";
    }
  });
  std::string layer = "[0.25";
  for (int i = 1; i < 512; ++i) layer += ",0.0014677";
  layer += "]";
  write("expert_load.jsonl", [&](std::ofstream& file) {
    for (int row = 1; row <= 40; ++row) {
      file << "{\"step\":" << row << ",\"layers\":[" << layer;
      for (int i = 1; i < 92; ++i) file << "," << layer;
      file << "]}\n";
    }
  });
  write("generations.jsonl", [](std::ofstream& file) {
    for (int i = 0; i < 40; ++i) {
      const std::string text(300'000, '<');
      file << Json{{"step", i}, {"prompt", std::to_string(i)}, {"generated_text", text}, {"expected", text}}.dump()
           << "\n";
    }
  });
  const std::string page = run_page(folder_.path());
  EXPECT_LE(page.size(), kMostPageBytes);
  const Json run = Json::parse(data_of(page))["runs"][0];
  EXPECT_EQ(run["lines"], 100'000);
  EXPECT_GE(run["series"]["loss"]["x"].size(), 100u);
  EXPECT_EQ(run["series"]["loss"]["x"].back(), 100'000);
  EXPECT_EQ(run["load"]["layers"], 92);
}

TEST_F(PageOfARun, APageReplacesAPage) {
  write("metrics.jsonl", [](std::ofstream& file) { file << "{\"step\":1,\"loss\":2}\n"; });
  write_run_page(folder_.path());
  write_run_page(folder_.path());
  EXPECT_TRUE(is_page(read_text(folder_ / kPageName)));
  EXPECT_FALSE(is_page("<!doctype html>\n<p>mine"));
  const std::string compared = compare_page({folder_.path(), folder_.path()}, Json{{"title", "two"}});
  EXPECT_EQ(Json::parse(data_of(compared))["runs"].size(), 2u);
  EXPECT_EQ(Json::parse(data_of(compared))["title"], "two");
}

}  // namespace
}  // namespace hone
