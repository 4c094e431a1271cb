#include "train/step/device_batch.h"
#include "core/cpu/thread_pool.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

MicroBatch batch_of(int64_t documents, int64_t supervised, int64_t max_seqlen) {
  MicroBatch batch;
  batch.cu_seqlens.resize(static_cast<size_t>(documents + 1));
  batch.rows.resize(static_cast<size_t>(supervised));
  batch.max_seqlen = max_seqlen;
  return batch;
}

TEST(DeviceBatch, RoundedSizesAreNeverLessAndNeverBeyondTheCapacity) {
  const BatchCapacity capacity{.max_tokens = 5000, .max_documents = 77, .max_supervised = 4900, .max_seqlen = 700};
  for (const int64_t documents : {1, 2, 3, 64, 65, 77}) {
    for (const int64_t supervised : {0, 1, 511, 512, 513, 4889, 4900}) {
      for (const int64_t length : {1, 5, 129, 512, 513, 700}) {
        const LaunchSizes sizes = rounded_sizes(batch_of(documents, supervised, length), capacity);
        EXPECT_GE(sizes.documents, documents);
        EXPECT_LE(sizes.documents, std::min<int64_t>(2 * documents, 77));
        EXPECT_GE(sizes.supervised, supervised);
        EXPECT_LT(sizes.supervised, supervised + 512);  // a sixteenth of 8192
        EXPECT_LE(sizes.supervised, 4900);
        EXPECT_GE(sizes.max_seqlen, length);
        EXPECT_LE(sizes.max_seqlen, 700);
      }
    }
  }
}

TEST(DeviceBatch, PacksThatDifferALittleHaveTheSameSizes) {
  const BatchCapacity capacity{.max_tokens = 4096, .max_documents = 400, .max_supervised = 4096, .max_seqlen = 4096};
  const LaunchSizes a = rounded_sizes(batch_of(40, 2500, 380), capacity),
                    b = rounded_sizes(batch_of(63, 2350, 300), capacity);
  EXPECT_EQ(a.documents, b.documents);
  EXPECT_EQ(a.supervised, b.supervised);
  EXPECT_EQ(a.max_seqlen, b.max_seqlen);
}

TEST(DeviceBatch, ACpuGetsTheBatchAsItIs) {
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  DeviceBatchMemory memory(Device{}, {.max_tokens = 64, .max_documents = 8, .max_supervised = 64, .max_seqlen = 64});
  MicroBatch host = batch_of(3, 2, 5);
  host.input_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  host.positions = {0, 1, 2, 3, 4, 0, 1, 0, 1};
  host.sample_ids.assign(9, 0);
  host.cu_seqlens = {0, 5, 7, 9};
  host.rows = {0, 7};
  host.targets = {2, 9};
  host.loss_weights = {1.0f, 0.5f};
  const DeviceBatch batch = memory.upload(stream, host);
  EXPECT_EQ(batch.documents, 3);
  EXPECT_EQ(batch.max_seqlen, 5);
  EXPECT_EQ(stream.download<int32_t>(batch.cu_seqlens), host.cu_seqlens);
  EXPECT_EQ(stream.download<int32_t>(batch.rows), host.rows);
  EXPECT_EQ(stream.download<float>(batch.loss_weights), host.loss_weights);
  EXPECT_EQ(stream.download<int32_t>(batch.present), (std::vector<int32_t>{2}));
}

}  // namespace
}  // namespace hone
