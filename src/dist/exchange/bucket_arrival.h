// The arrival of a bucket's values (params/arrival.h) over lanes: communicators, or lanes of copies.
#pragma once

#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "core/stream/profiler.h"
#include "core/stream/stream.h"
#include "params/bucket.h"

namespace hone {

/// The values are there after the calls that have been made so far on these lanes. A Lane is a Communicator or a
/// CopyLane; it, the stream and the bucket must outlive the arrival.
template <class Lane>
void expect_values(Stream& stream, const Bucket& bucket, const std::vector<Lane*>& lanes) {
  std::vector<std::pair<Lane*, int64_t>> calls;
  for (Lane* lane : lanes) calls.emplace_back(lane, lane->calls());
  bucket.arrivals->expect({.on_stream =
                               [&stream, &bucket, calls] {
                                 const ProfileScope scope(stream, ProfileKind::kWait, "wait for", bucket.name);
                                 for (const auto& [lane, call] : calls) lane->join(stream, call);
                               },
                           .on_host =
                               [&stream, calls] {
                                 for (const auto& [lane, call] : calls) lane->finish(stream, call);
                               }});
}

/// Waits for the values of buckets that have been sent for; call it before what sends them ends.
inline void settle_values(std::span<const Bucket> buckets) {
  for (const Bucket& bucket : buckets) {
    try {
      bucket.arrivals->await_on_host();
    } catch (const std::exception&) {  // a rank is lost; other calls report it
      bucket.arrivals->forget();
    }
  }
}

}  // namespace hone
