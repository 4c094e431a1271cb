#include "dist/proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

namespace hone {
namespace {

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

/// The listener's end of a whole exchange.
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

/// Passes a whole exchange on, and notes what each said.
struct Recording {
  std::vector<Message> caller, listener;
};

Recording record() {
  Ends left, right;  // the caller and who listens in; who listens in and the listener
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
  // Who does not know the secret sends the caller's own proof back.
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
  EXPECT_EQ(said.listener[0].bytes.size(), 48u);  // random bytes, and what tells runs apart
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

}  // namespace
}  // namespace hone
