#include "dist/run_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "core/error.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunSecret : public ::testing::Test {
 protected:
  RunSecret() {
    std::string name = (fs::temp_directory_path() / "hone-secret-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~RunSecret() override { fs::remove_all(folder_); }

  std::function<const char*(const char*)> variables(const std::map<std::string, std::string>& values) {
    values_ = values;
    return [this](const char* name) {
      const auto found = values_.find(name);
      return found == values_.end() ? nullptr : found->second.c_str();
    };
  }
  std::string write(const std::string& name, const std::string& text, fs::perms mode = fs::perms::owner_read) {
    std::ofstream(folder_ / name) << text;
    fs::permissions(folder_ / name, mode);
    return folder_ / name;
  }
  SecretPlaces here() const { return {.stated = "", .folders = {folder_}, .of_this_host = false}; }

  fs::path folder_;
  std::map<std::string, std::string> values_;
};

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.message() + " | " + error.where() + " | " + error.fix();
  }
  return "no error";
}

TEST_F(RunSecret, IsWhatIsStatedAFileFirst) {
  EXPECT_EQ(stated_secret(variables({})), "");
  EXPECT_EQ(stated_secret(variables({{"HONE_RUN_SECRET", "0123456789abcdef"}})), "0123456789abcdef");
  // Secrets of containers are links to files that all of the container may read.
  const std::string file = write("secret", "fedcba9876543210\n", fs::perms::owner_read | fs::perms::others_read);
  fs::create_symlink(file, folder_ / "link");
  EXPECT_EQ(stated_secret(variables(
                {{"HONE_RUN_SECRET", "0123456789abcdef"}, {"HONE_RUN_SECRET_FILE", (folder_ / "link").string()}})),
            "fedcba9876543210");
}

TEST_F(RunSecret, ThatIsShortOrCannotBeReadIsAnError) {
  const auto error = [this](const char* name, const std::string& value) {
    return error_of([&] { stated_secret(variables({{name, value}})); });
  };
  EXPECT_THAT(error("HONE_RUN_SECRET", "short"), HasSubstr("has 5 characters | HONE_RUN_SECRET | give it at least 16"));
  EXPECT_THAT(error("HONE_RUN_SECRET_FILE", write("short", "0123456789\n")), HasSubstr("has 10 characters"));
  EXPECT_THAT(error("HONE_RUN_SECRET_FILE", write("long", std::string(5000, 'x'))), HasSubstr("too long"));
  EXPECT_THAT(error("HONE_RUN_SECRET_FILE", folder_ / "none"), HasSubstr("No such file"));
  EXPECT_THAT(error("HONE_RUN_SECRET_FILE", folder_), HasSubstr("not a file"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error("HONE_RUN_SECRET_FILE", folder_ / "pipe"), HasSubstr("not a file"));
}

TEST_F(RunSecret, IsNewEachTime) {
  EXPECT_EQ(new_secret().size(), 64u);
  EXPECT_NE(new_secret(), new_secret());
}

TEST_F(RunSecret, LiesWhereAllRanksSeeIt) {
  const auto none = [] { return std::string(); };
  const auto output_dir = [] { return std::string("/shared/run"); };
  LaunchEnvironment environment;
  EXPECT_THAT(error_of([&] { secret_places(environment, none, variables({})); }), HasSubstr("HONE_RUN_SECRET"));
  EXPECT_THAT(secret_places(environment, output_dir, variables({})).folders, ::testing::ElementsAre("/shared/run"));
  EXPECT_EQ(secret_places(environment, none, variables({{"HONE_RUN_SECRET", "0123456789abcdef"}})).stated,
            "0123456789abcdef");
  environment.one_host = true;
  EXPECT_EQ(secret_places(environment, none, variables({{"XDG_RUNTIME_DIR", folder_}})).folders.front(), folder_);
  fs::permissions(folder_, fs::perms::all);  // not this user's alone
  for (const fs::path& folder : secret_places(environment, none, variables({{"XDG_RUNTIME_DIR", folder_}})).folders) {
    EXPECT_NE(folder, folder_);
  }
}

TEST_F(RunSecret, FileIsThisUsersAloneAndGoneAtTheEnd) {
  const SecretPlaces places{.stated = "", .folders = {folder_ / "not" / "there"}, .of_this_host = false};
  {
    const SecretFile file(places, "name");
    struct stat facts {};
    ASSERT_EQ(::stat((places.folders[0] / "name").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
    EXPECT_EQ(read_secret_file(places, "name"), file.secret());
    EXPECT_EQ(read_secret_file(places, "other"), std::nullopt);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(RunSecret, FileOfAKilledRunIsReplacedAndOneOfOthersRefused) {
  write("name", std::string(64, 'x') + "\n");
  EXPECT_EQ(read_secret_file(here(), "name"), std::string(64, 'x'));
  {
    const SecretFile file(here(), "name");
    EXPECT_NE(file.secret(), std::string(64, 'x'));
    EXPECT_EQ(read_secret_file(here(), "name"), file.secret());
  }
  write("begun", std::string(10, 'x'));
  EXPECT_EQ(read_secret_file(here(), "begun"), std::nullopt) << "it is being written";
  write("open", std::string(64, 'x') + "\n", fs::perms::owner_read | fs::perms::group_read);
  EXPECT_THAT(error_of([this] { read_secret_file(here(), "open"); }), HasSubstr("others may read"));
  // A link leads elsewhere: it is replaced, and its target stays as it is.
  fs::create_symlink(folder_ / "open", folder_ / "link");
  EXPECT_EQ(read_secret_file(here(), "link"), std::nullopt);
  const SecretFile file(here(), "link");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "link")));
  EXPECT_TRUE(fs::exists(folder_ / "open"));
}

TEST_F(RunSecret, FolderOfThisHostMustBeThisUsersAlone) {
  SecretPlaces places{.stated = "", .folders = {folder_}, .of_this_host = true};
  fs::permissions(folder_, fs::perms::all);
  EXPECT_THAT(error_of([&] { SecretFile(places, "name"); }), HasSubstr("not this user's alone"));
  write("name", std::string(64, 'x') + "\n");
  EXPECT_EQ(read_secret_file(places, "name"), std::nullopt);
}

TEST(RunSecretFile, IsNamedByRunAndPort) {
  EXPECT_EQ(secret_file_name("", 29500), ".hone-29500.secret");
  EXPECT_EQ(secret_file_name("77.0", 29501), ".hone-77_0-29501.secret");
  EXPECT_EQ(secret_file_name("../x/y", 1), ".hone-___x_y-1.secret");
}

}  // namespace
}  // namespace hone
