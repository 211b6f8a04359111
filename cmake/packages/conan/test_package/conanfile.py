# SPDX-License-Identifier: MIT
# The README's program, built with the package.
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class SternwayTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False  # nothing is left in the tree
        toolchain.generate()

    def build(self):
        package = self.dependencies["sternway"].package_folder
        copy(self, "main.c", os.path.join(package, "share/doc/sternway/examples"), self.build_folder)
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            self.run("STERNWAY_BACKEND=cpu " + os.path.join(self.cpp.build.bindir, "program"), env="conanrun")
