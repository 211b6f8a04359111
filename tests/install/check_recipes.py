#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The recipes of cmake/packages: they parse, name this version, and give CMake options that it has.

options   every recipe, by what is here: conda's text as YAML, spack's class and vcpkg's portfile run with their words faked
conan     `conan create`, which builds the library and runs the README's program with it; skipped where there is no conan
"""
import argparse
import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

from consumer import run

SPACK_WORDS = ("license", "maintainers", "version", "variant", "depends_on", "generator", "conflicts")
VCPKG = """cmake_minimum_required(VERSION 3.25)
set(CURRENT_PORT_DIR "{port}")
set(CURRENT_PACKAGES_DIR "{work}/packages")
set(FEATURES tools cuda hip)
function(vcpkg_check_features)
    cmake_parse_arguments(PARSE_ARGV 0 _ "" "OUT_FEATURE_OPTIONS" "FEATURES")
    set(_made "")
    while(__FEATURES)
        list(POP_FRONT __FEATURES _feature _option)
        list(APPEND _made -D${{_option}}=ON)
    endwhile()
    set(${{__OUT_FEATURE_OPTIONS}} "${{_made}}" PARENT_SCOPE)
endfunction()
function(vcpkg_cmake_configure)
    cmake_parse_arguments(PARSE_ARGV 0 _ "" "SOURCE_PATH" "OPTIONS")
    message("source=${{__SOURCE_PATH}}")
    foreach(_option IN LISTS __OPTIONS)
        message("${{_option}}")
    endforeach()
endfunction()
foreach(_word vcpkg_check_linkage vcpkg_cmake_install vcpkg_cmake_config_fixup vcpkg_fixup_pkgconfig vcpkg_copy_tools vcpkg_install_copyright)
    cmake_language(EVAL CODE "function(${{_word}})\\nendfunction()")
endforeach()
include("{port}/portfile.cmake")
"""


def conda_options(recipe, version):
    text = (recipe / "meta.yaml").read_text()
    text = re.sub(r"^\{% set.*%\}$", "", text, flags=re.M).replace("{{ version }}", version)
    text = re.sub(r"\{\{ (\w+)\(\"(\w+)\"\) \}\}", r"\1_\2", text)
    try:
        import yaml
    except ImportError:
        print("PyYAML is not here: conda's meta.yaml was not parsed")
    else:
        meta = yaml.safe_load(text)
        if set(meta) != {"package", "source", "build", "requirements", "test", "about"} or not meta["test"]["commands"]:
            sys.exit(f"conda: {sorted(meta)}")
        if meta["package"]["version"] != version or not (recipe / meta["source"]["path"] / "CMakeLists.txt").is_file():
            sys.exit(f"conda: {meta['package']} {meta['source']}")
    run("bash", "-n", recipe / "build.sh")
    return (recipe / "build.sh").read_text()


def spack_options(recipe, version):
    """The class of package.py, made by a spack that takes down what it is told."""
    told, module = [], types.ModuleType("spack.package")

    class CMakePackage:
        def define(self, name, value):
            return f"-D{name}={value}"

        def define_from_variant(self, name, variant):
            if not any(word == "variant" and args[0] == variant for word, args, _ in told):
                sys.exit(f"spack: {variant} is no variant")
            return f"-D{name}=ON"

    def decorator(*_, **__):
        return lambda function: function

    for word in SPACK_WORDS:
        setattr(module, word, lambda *args, word=word, **words: told.append((word, args, words)))
    module.CMakePackage, module.run_after, module.on_package_attributes = CMakePackage, decorator, decorator
    module.Executable = None
    sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": module})
    names = {}
    exec(compile((recipe / "package.py").read_text(), str(recipe / "package.py"), "exec"), names)
    if not any(word == "version" and args == (version,) for word, args, _ in told):
        sys.exit(f"spack: no version {version}")
    package = names["Sternway"]()
    package.spec = types.SimpleNamespace(variants={"archs": types.SimpleNamespace(value=("all",))})
    return " ".join(package.cmake_args())


def vcpkg_options(recipe, version, cmake, work):
    port = json.loads((recipe / "vcpkg.json").read_text())
    if port["name"] != "sternway" or port["version-semver"] != version or port["license"] != "MIT":
        sys.exit(f"vcpkg: {port}")
    for dependency in port["dependencies"] + [name for feature in port["features"].values() for name in feature.get("dependencies", [])]:
        name = dependency if isinstance(dependency, str) else dependency["name"]
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            sys.exit(f"vcpkg: {name} is no name of a port")
    if set(port["default-features"]) - set(port["features"]):
        sys.exit("vcpkg: default-features")
    script = work / "portfile.cmake"
    script.write_text(VCPKG.format(port=recipe, work=work))
    done = subprocess.run([cmake, "-P", script], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"vcpkg: {done.stderr}")
    done = done.stderr
    source = re.search(r"^source=(.*)$", done, re.M).group(1)
    if not pathlib.Path(source, "CMakeLists.txt").is_file():
        sys.exit(f"vcpkg: the sources are to be in {source}")
    return done


def conan_options(recipe):
    text = (recipe / "conanfile.py").read_text()
    for file in ("conanfile.py", "test_package/conanfile.py"):
        ast.parse((recipe / file).read_text())
    words = re.search(r"words = (\{.*?\})\n", text, re.S).group(1)
    return " ".join(f"-DSTERNWAY_{name}=" for name in re.findall(r'"([A-Z_]+)":', words))


def check_options(options, recipes, work):
    known = set()
    for path in [options.source / "CMakeLists.txt", *(options.source / "cmake").glob("*.cmake")]:
        known |= set(re.findall(r"(?:option\(|set\(|find_program\()(STERNWAY_\w+)(?: \"| \w+ DOC| [^)]*CACHE)", path.read_text()))
    given = {"conda": conda_options(recipes / "conda", options.version),
             "spack": spack_options(recipes / "spack", options.version),
             "vcpkg": vcpkg_options(recipes / "vcpkg", options.version, options.cmake, work),
             "conan": conan_options(recipes / "conan")}
    for name, text in given.items():
        named = set(re.findall(r"-D(STERNWAY_\w+)=", text))
        if not named >= {"STERNWAY_TESTS", "STERNWAY_PYTHON"} or named - known:
            sys.exit(f"{name} gives CMake {sorted(named)}, of which it has not {sorted(named - known)}")
        print(f"{name}: {len(named)} options")


def check_conan(options, recipes, work):
    conan = options.conan if os.access(options.conan, os.X_OK) else shutil.which("conan")
    if not conan:
        print("conan is not here")
        sys.exit(77)
    environment = {**os.environ, "CONAN_HOME": str(work / "home")}
    for words in (["profile", "detect"],
                  ["create", recipes / "conan", "-o", f"images_from={options.build}/images", "-c", "tools.build:jobs=2",
                   "-c", f"tools.cmake.cmake_layout:test_folder={work}/test"]):
        done = subprocess.run([conan, *words], check=False, capture_output=True, text=True, env=environment, cwd=work)
        if done.returncode:
            sys.exit(f"conan {words[0]}: {(done.stdout + done.stderr)[-3000:]}")
    if "attention backward on cpu: STW_OK" not in done.stdout + done.stderr:
        sys.exit("the program of test_package did not run")
    if (recipes / "conan/test_package/CMakeUserPresets.json").exists():
        sys.exit("conan left CMakeUserPresets.json in the tree")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=("options", "conan"))
    parser.add_argument("--source", type=pathlib.Path, required=True)
    for name in ("build", "cmake", "version", "conan"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sternway-recipes-") as name:
        check = {"options": check_options, "conan": check_conan}[options.check]
        check(options, options.source / "cmake/packages", pathlib.Path(name))


if __name__ == "__main__":
    main()
