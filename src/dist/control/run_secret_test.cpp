#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "core/base/error.h"
#include "dist/control/launch_environment.h"
#include "dist/control/run_secret.h"

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
  // Secrets of containers are links to files that all users of the container may read.
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
  fs::permissions(folder_, fs::perms::all);  // accessible to other users
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
  // A link is replaced, and its target does not change.
  fs::create_symlink(folder_ / "open", folder_ / "link");
  EXPECT_EQ(read_secret_file(here(), "link"), std::nullopt);
  const SecretFile file(here(), "link");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "link")));
  EXPECT_TRUE(fs::exists(folder_ / "open"));
}

TEST_F(RunSecret, FolderOfThisHostMustBeThisUsersAlone) {
  SecretPlaces places{.stated = "", .folders = {folder_}, .of_this_host = true};
  fs::permissions(folder_, fs::perms::all);
  EXPECT_THAT(error_of([&] { SecretFile(places, "name"); }), HasSubstr("other users can access this folder"));
  write("name", std::string(64, 'x') + "\n");
  EXPECT_EQ(read_secret_file(places, "name"), std::nullopt);
}

TEST(RunSecretFile, IsNamedByRunAndPort) {
  EXPECT_EQ(secret_file_name("", 29500), ".hone-29500.secret");
  EXPECT_EQ(secret_file_name("77.0", 29501), ".hone-77_0-29501.secret");
  EXPECT_EQ(secret_file_name("../x/y", 1), ".hone-___x_y-1.secret");
}

const std::string kSecret = "what the ranks of a test know";

Claims claims_of(int rank, int port = 7000) { return {"1.0", "control", run_digest("run", 29500), port, rank, 4}; }

struct Ends {
  Ends() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    caller = Socket(ends[0]);
    listener = Socket(ends[1]);
  }
  Socket caller, listener;
};

/// Runs the listener's side of an exchange.
ListenersProof::State listen(const Ends& ends, ListenersProof& proof) {
  MessageReader reader;
  reader.set_longest(kLongestProof);
  ListenersProof::State state = ListenersProof::State::kOpen;
  while (state == ListenersProof::State::kOpen) {
    const std::optional<Message> message = receive_message(ends.listener, reader, 1);
    if (!message) break;
    state = proof.take(ends.listener, *message);
  }
  return state;
}

struct Outcome {
  ProofAnswer answer;
  ListenersProof::State state;
  Claims claims;
};

Outcome run(const Claims& claimed, const Claims& expected, std::optional<std::string> callers_secret,
            const std::string& listeners_secret) {
  Ends ends;
  ListenersProof proof(listeners_secret, expected);
  ListenersProof::State state{};
  std::thread listener([&] {
    state = listen(ends, proof);
    ends.listener.close();
  });
  MessageReader reader;
  const ProofAnswer answer = prove(ends.caller, reader, claimed, [&] { return callers_secret; });
  ends.caller.close();
  listener.join();
  return {answer, state, proof.claims()};
}

TEST(Proof, ThoseWhoKnowTheSecretFindOut) {
  const Outcome outcome = run(claims_of(3), claims_of(0), kSecret, kSecret);
  EXPECT_EQ(outcome.answer, ProofAnswer::kProven);
  EXPECT_EQ(outcome.state, ListenersProof::State::kProven);
  EXPECT_EQ(outcome.claims.rank, 3);
  EXPECT_EQ(outcome.claims.world_size, 4);
  EXPECT_EQ(outcome.claims.version, "1.0");
}

TEST(Proof, AnotherSecretIsToldApartFromNone) {
  EXPECT_EQ(run(claims_of(3), claims_of(0), "another secret of a test", kSecret).answer, ProofAnswer::kOtherSecret);
  EXPECT_EQ(run(claims_of(3), claims_of(0), std::nullopt, kSecret).answer, ProofAnswer::kNoSecret);
  Claims neighbour = claims_of(3);
  neighbour.run = run_digest("run", 29501);
  EXPECT_EQ(run(neighbour, claims_of(0), std::nullopt, kSecret).answer, ProofAnswer::kNoAnswer);
}

TEST(Proof, HoldsForOnePurposeAndPortAlone) {
  Claims data = claims_of(3);
  data.purpose = "data";
  EXPECT_EQ(run(data, claims_of(0), kSecret, kSecret).state, ListenersProof::State::kFailed);
  EXPECT_EQ(run(claims_of(3, 7001), claims_of(0), kSecret, kSecret).state, ListenersProof::State::kFailed);
}

/// Forwards an exchange and records the messages of both sides.
struct Recording {
  std::vector<Message> caller, listener;
};

Recording record() {
  Ends left, right;  // caller and eavesdropper; eavesdropper and listener
  ListenersProof proof(kSecret, claims_of(0));
  std::thread caller([&] {
    MessageReader reader;
    prove(left.caller, reader, claims_of(3), [] { return kSecret; });
  });
  std::thread listener([&] { listen(right, proof); });
  Recording recording;
  MessageReader from_caller, from_listener;
  for (int turn = 0; turn < 2; ++turn) {
    recording.caller.push_back(receive_message(left.listener, from_caller, 1).value());
    send_message(right.caller, recording.caller.back().type, recording.caller.back().bytes);
    recording.listener.push_back(receive_message(right.caller, from_listener, 1).value());
    send_message(left.listener, recording.listener.back().type, recording.listener.back().bytes);
  }
  caller.join();
  listener.join();
  return recording;
}

TEST(Proof, WhatWasSaidOnceProvesNothingLater) {
  const Recording old = record();
  Ends ends;
  ListenersProof proof(kSecret, claims_of(0));
  EXPECT_EQ(proof.take(ends.listener, old.caller[0]), ListenersProof::State::kOpen);
  EXPECT_EQ(proof.take(ends.listener, old.caller[1]), ListenersProof::State::kFailed);
  EXPECT_TRUE(proof.other_secret());
}

TEST(Proof, AListenerIsNotAnsweredWithItsOwnWords) {
  // A listener without the secret sends the caller's own proof back.
  Ends ends;
  ProofAnswer answer{};
  std::thread caller([&] {
    MessageReader reader;
    answer = prove(ends.caller, reader, claims_of(3), [] { return kSecret; });
  });
  MessageReader reader;
  const Message hello = receive_message(ends.listener, reader, 1).value();
  send_message(ends.listener, 'c', hello.bytes + run_digest("run", 29500).substr(0, 16));
  const Message proof = receive_message(ends.listener, reader, 1).value();
  send_message(ends.listener, 'a', proof.bytes.substr(0, 32));
  caller.join();
  EXPECT_EQ(answer, ProofAnswer::kOtherSecret);
}

TEST(Proof, NobodySaysAnythingOfItselfToAStranger) {
  const Recording said = record();
  EXPECT_EQ(said.caller[0].bytes.size(), 32u);
  EXPECT_EQ(said.listener[0].bytes.size(), 48u);  // random bytes and the first bytes of the run digest
  EXPECT_EQ(said.listener[0].bytes.substr(32), run_digest("run", 29500).substr(0, 16));
  EXPECT_EQ(said.caller[1].bytes.find(kSecret), std::string::npos);
}

TEST(Proof, WhatIsNotAProofIsRefused) {
  const Recording said = record();
  Ends ends;
  ListenersProof early(kSecret, claims_of(0));
  EXPECT_EQ(early.take(ends.listener, said.caller[1]), ListenersProof::State::kFailed);
  for (const size_t length : {0, 31, 33}) {
    ListenersProof proof(kSecret, claims_of(0));
    EXPECT_EQ(proof.take(ends.listener, {'h', std::string(length, 'x')}), ListenersProof::State::kFailed);
  }
}

using Variables = std::map<std::string, std::string>;

LaunchEnvironment detect(const Variables& variables) {
  return launch_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string launch_error(const Variables& variables) {
  try {
    detect(variables);
  } catch (const UserError& error) {
    return error.message();
  }
  return "no error";
}

TEST(LaunchEnvironment, AProcessThatWasStartedAloneIsOneRank) {
  const LaunchEnvironment alone = detect({{"HOME", "/"}});
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_EQ(alone.launcher, "");
  EXPECT_EQ(alone.describe(), "one process");
}

TEST(LaunchEnvironment, TorchrunSaysAllAndKeepsItsPort) {
  Variables variables = {{"RANK", "3"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "n7"}, {"MASTER_PORT", "12345"}, {"TORCHELASTIC_RUN_ID", "r1"}};
  LaunchEnvironment found = detect(variables);
  EXPECT_EQ(found.describe(), "rank 3 of 8 (local rank 1), started by torchrun; rank 0 at n7:12345");
  EXPECT_EQ(found.run, "r1");
  EXPECT_EQ(found.ports.size(), 8u);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(detect(variables).ports.front(), 12346);
}

TEST(LaunchEnvironment, OpenMpiOnOneHostNeedsNoAddress) {
  const LaunchEnvironment found = detect({{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                          {"OMPI_MCA_ess_base_jobid", "123456"}});
  EXPECT_EQ(found.launcher, "Open MPI");
  EXPECT_EQ(found.host, "127.0.0.1");
  EXPECT_EQ(found.rank, 1);
  EXPECT_GE(found.ports.front(), 29500);
  EXPECT_LT(found.ports.back(), 65536);
}

TEST(LaunchEnvironment, MpirunOnSeveralHostsAsksForTheAddressOfRank0) {
  const auto expect = [](Variables variables, const char* fix) {
    try {
      detect(variables);
      FAIL() << "no error";
    } catch (const UserError& error) {
      EXPECT_EQ(error.message(), "the address of rank 0 is not known");
      EXPECT_THAT(error.fix(), ::testing::StartsWith(fix));
    }
    variables["MASTER_ADDR"] = "node1";
    EXPECT_EQ(detect(variables).host, "node1");
  };
  expect({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
         "mpirun -x MASTER_ADDR=");
  expect({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
         "mpirun -genv MASTER_ADDR ");
}

TEST(LaunchEnvironment, ASlurmStepNamesItsFirstHost) {
  Variables variables = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_NUM_TASKS", "8"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NODELIST", "gpu[003-006]"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"}};
  const LaunchEnvironment found = detect(variables);
  EXPECT_EQ(found.launcher, "SLURM");
  EXPECT_EQ(found.host, "gpu003");
  EXPECT_EQ(found.run, "77.0");
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
  variables["SLURM_STEP_TASKS_PER_NODE"] = "8";  // one node
  EXPECT_EQ(detect(variables).host, "127.0.0.1");
  variables.erase("SLURM_STEP_NUM_TASKS");  // the batch script itself
  EXPECT_EQ(detect(variables).world_size, 1);
}

TEST(LaunchEnvironment, PmiCountsToo) {
  const LaunchEnvironment found = detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(found.launcher, "PMI");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.local_rank, 1);
  const LaunchEnvironment mpich =
      detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(mpich.host, "127.0.0.1") << "all ranks are on one host";
}

TEST(LaunchEnvironment, TorchrunUnderSlurmIsTorchruns) {
  const LaunchEnvironment found = detect({{"SLURM_PROCID", "1"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"RANK", "9"},
                                          {"WORLD_SIZE", "16"},
                                          {"LOCAL_RANK", "1"},
                                          {"MASTER_ADDR", "n0"},
                                          {"TORCHELASTIC_RUN_ID", "none"}});
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.rank, 9);
}

TEST(LaunchEnvironment, TorchrunThatSrunStartedSaysTheRanks) {
  // Its ranks inherit the variables of torchrun's own process.
  const LaunchEnvironment found = detect({{"SLURM_PROCID", "0"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"SLURM_STEP_NODELIST", "a"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                          {"PMIX_RANK", "0"},
                                          {"RANK", "1"},
                                          {"WORLD_SIZE", "4"},
                                          {"MASTER_ADDR", "a"},
                                          {"TORCHELASTIC_RUN_ID", "none"}});
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.rank, 1);
}

TEST(LaunchEnvironment, MpirunOfMpichUnderSlurmSaysTheRanks) {
  // It starts one process per host by srun, whose variables its ranks inherit.
  Variables variables = {{"SLURM_PROCID", "1"},    {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_LOCALID", "0"},   {"SLURM_JOB_NODELIST", "gpu[003-004]"},
                         {"PMI_RANK", "7"},        {"PMI_SIZE", "8"},
                         {"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "4"}};
  const LaunchEnvironment found = detect(variables);
  EXPECT_EQ(found.launcher, "PMI");
  EXPECT_EQ(found.rank, 7);
  EXPECT_EQ(found.local_rank, 3);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_EQ(found.host, "gpu003");
  variables.erase("MPI_LOCALRANKID");  // srun --mpi=pmi2 sets the rest
  variables["PMI_RANK"] = "1";
  variables["PMI_SIZE"] = "2";
  EXPECT_EQ(detect(variables).launcher, "SLURM");
}

TEST(LaunchEnvironment, MpirunInASlurmJobFindsRank0OnItsFirstHost) {
  // Each of mpirun's daemons is in a step whose list leaves out the host of mpirun.
  const LaunchEnvironment found = detect({{"OMPI_COMM_WORLD_RANK", "5"},
                                          {"OMPI_COMM_WORLD_SIZE", "8"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                          {"PMIX_NAMESPACE", "prterun-gpu003-77@1"},
                                          {"SLURM_PROCID", "0"},
                                          {"SLURM_STEP_NUM_TASKS", "1"},
                                          {"SLURM_STEP_NODELIST", "gpu004"},
                                          {"SLURM_JOB_NODELIST", "gpu[003-004]"}});
  EXPECT_EQ(found.describe(),
            "rank 5 of 8 (local rank 1), started by Open MPI; rank 0 at gpu003:" + std::to_string(found.ports.front()));
  EXPECT_EQ(found.run, "prterun-gpu003-77@1");
}

TEST(LaunchEnvironment, WhoSetsTheVariablesByHandIsNotTorchrun) {
  Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(detect(variables).launcher, "hand");
  variables["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(detect(variables).launcher, "torchrun");
}

TEST(LaunchEnvironment, WhatCannotBeIsAnError) {
  EXPECT_EQ(launch_error({{"RANK", "1"}}), "RANK is set, but WORLD_SIZE is not");
  EXPECT_EQ(launch_error({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is set, but RANK is not");
  EXPECT_EQ(launch_error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "RANK=2 and WORLD_SIZE=2 are impossible: ranks count from 0");
  EXPECT_EQ(launch_error({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), "RANK=-1 is not a number from 0");
  EXPECT_EQ(launch_error({{"RANK", "0x"}, {"WORLD_SIZE", "2"}}), "RANK=0x is not a number from 0");
  EXPECT_EQ(launch_error({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}),
            "WORLD_SIZE=99999999999 is not a number from 0");
  EXPECT_EQ(launch_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "the address of rank 0 is not known");
  EXPECT_EQ(launch_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
            "70000 is not a port");
  EXPECT_EQ(
      launch_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
      "RANK and WORLD_SIZE say rank 0 of 2, Open MPI says rank 1 of 2");
}

TEST(LaunchEnvironment, TheFirstHostOfASlurmList) {
  EXPECT_EQ(first_slurm_host("gpu[003-005,9],login1"), "gpu003");
  EXPECT_EQ(first_slurm_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_slurm_host("n[7]"), "n7");
  EXPECT_EQ(first_slurm_host("n[7,9]"), "n7");
  EXPECT_EQ(first_slurm_host("single"), "single");
  EXPECT_EQ(first_slurm_host("broken["), "broken");
  EXPECT_EQ(first_slurm_host(""), "");
}

}  // namespace
}  // namespace hone
