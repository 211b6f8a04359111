# SPDX-License-Identifier: MIT
# Spack package. `repo.yaml` makes this folder's parent of packages/sternway a repository (cmake/packages/README.md).
from spack.package import *


class Sternway(CMakePackage):
    """The backward pass of attention and of nested tensors on NVIDIA's and AMD's GPUs and on CPUs, behind one C interface."""

    homepage = "https://sternway.invalid"
    # No archive of a release is out yet: `spack dev-build sternway@0.1.0` takes the tree that it is called in.
    license("MIT", checked_by="sternway")
    maintainers("sternway")

    version("0.1.0", branch="main", git="https://sternway.invalid/sternway.git")

    ARCHS = ("sm80", "sm90", "gfx90a", "gfx942")  # gfx950 needs an llvm 22 beside llvm 19
    variant("archs", default="all", values=("all",) + ARCHS, multi=True, description="GPU archs to build images of")
    variant("cuda", default=True, description="Build the CUDA backend")
    variant("rocm", default=True, description="Build the HIP backend")
    variant("tools", default=True, description="Build the sternway command")
    variant("static", default=False, description="Install the static library too")

    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type="build")
    depends_on("cuda@12.9:", type="build", when="+cuda")
    depends_on("llvm@19: targets=amdgpu +lld", type="build", when="+rocm")
    depends_on("cjson", when="+tools")

    generator("ninja")
    conflicts("platform=darwin")
    conflicts("target=aarch64:", msg="x86-64 alone is built and tested")

    def cmake_args(self):
        archs = self.spec.variants["archs"].value
        return [
            self.define_from_variant("STERNWAY_CUDA", "cuda"),
            self.define_from_variant("STERNWAY_HIP", "rocm"),
            self.define_from_variant("STERNWAY_TOOLS", "tools"),
            self.define_from_variant("STERNWAY_STATIC", "static"),
            self.define("STERNWAY_ARCHS", ",".join(archs)),
            self.define("STERNWAY_GLIBC", False),
            self.define("STERNWAY_TESTS", False),
            self.define("STERNWAY_PYTHON", False),
            self.define("STERNWAY_COMPILER_CACHE", False),
            self.define("STERNWAY_IMAGE_CACHE", False),
        ]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        if self.spec.satisfies("+tools"):
            Executable(self.prefix.bin.sternway)("conform", "--backend", "cpu", "--cases", "20")
