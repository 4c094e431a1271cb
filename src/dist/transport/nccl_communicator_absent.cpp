// connect_nccl() in builds without CUDA.
#include "core/base/error.h"
#include "dist/transport/nccl_communicator.h"

namespace hone {

std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Control>, Stream&) {
  HONE_ASSERT(false, "built without CUDA");
}

std::string nccl_version() { return "none: this program was built without CUDA"; }

}  // namespace hone
