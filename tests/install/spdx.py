# SPDX-License-Identifier: MIT
"""The SPDX documents of a tree: what the format demands, and that they tell the truth about the files beside them.

Used by check_install.py, check_packages.py, check_tarball.py and check_rpm.py. Where Python has spdx_tools, that is asked too.
"""
import hashlib
import json
import re
import sys

PACKAGE = {"SPDXID", "name", "downloadLocation", "filesAnalyzed", "licenseConcluded", "licenseDeclared", "copyrightText"}
FILE = {"SPDXID", "fileName", "checksums", "licenseConcluded", "licenseInfoInFiles", "copyrightText"}


def form(document):
    """What SPDX 2.3 demands of a document whose first package lists files."""
    problems, packages, files = [], document.get("packages", []), document.get("files", [])
    fixed = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT"}
    problems += [f"{key} is {document.get(key)!r}" for key, value in fixed.items() if document.get(key) != value]
    if not re.fullmatch(r"https://[^#\s]+", document.get("documentNamespace", "")):
        problems.append("documentNamespace is no address")
    creation = document.get("creationInfo", {})
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", creation.get("created", "")):
        problems.append("creationInfo.created is no date")
    if not all(re.match(r"(Tool|Organization|Person): ", creator) for creator in creation.get("creators", [""])):
        problems.append("creationInfo.creators")
    for element, wanted in [(package, PACKAGE) for package in packages] + [(file, FILE) for file in files]:
        if wanted - set(element):
            problems.append(f"{element.get('SPDXID')} lacks {sorted(wanted - set(element))}")
    names = ["SPDXRef-DOCUMENT"] + [element.get("SPDXID", "") for element in packages + files]
    problems += [f"{name} is no name" for name in names if not re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", name)]
    if len(set(names)) != len(names):
        problems.append("a name is there twice")
    for relation in document.get("relationships", []):
        ends = {relation["spdxElementId"], relation["relatedSpdxElement"]}
        problems += [f"a relation of {name}, which is not there" for name in ends - set(names)]
    kinds = [relation["relationshipType"] for relation in document.get("relationships", [])]
    if kinds.count("DESCRIBES") != 1 or kinds.count("CONTAINS") != len(files) or not kinds.count("BUILD_TOOL_OF"):
        problems.append(f"relations: {sorted(set(kinds))}")
    return problems


def truth(document, prefix):
    problems, sums = [], []
    for file in document["files"]:
        path = prefix / file["fileName"]
        given = {checksum["algorithm"]: checksum["checksumValue"] for checksum in file["checksums"]}
        sums.append(given.get("SHA1", ""))
        if not path.is_file() or path.is_symlink():
            problems.append(f"{file['fileName']} is no file here")
            continue
        data = path.read_bytes()
        if given != {"SHA1": hashlib.sha1(data).hexdigest(), "SHA256": hashlib.sha256(data).hexdigest()}:
            problems.append(f"{file['fileName']} has other sums")
    code = document["packages"][0]["packageVerificationCode"]["packageVerificationCodeValue"]
    if code != hashlib.sha1("".join(sorted(sums)).encode()).hexdigest():
        problems.append("packageVerificationCodeValue is not that of the files")
    return problems


def by_spdx_tools(path):
    try:
        from spdx_tools.spdx.parser.parse_anything import parse_file
        from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
    except ImportError:
        return []
    print(f"spdx_tools reads {path.name}")
    return [message.validation_message for message in validate_full_spdx_document(parse_file(str(path)))]


def check(prefix, documents, version, root=None):
    """Every document of that number holds, and every file under the root (else the prefix) is in one of them."""
    found, listed = sorted(prefix.rglob("*.spdx.json")), set()
    if len(found) != documents:
        sys.exit(f"SPDX documents: {[str(path.relative_to(prefix)) for path in found]}, {documents} are expected")
    for path in found:
        document = json.loads(path.read_text())
        problems = form(document)
        problems = problems or truth(document, prefix) + by_spdx_tools(path)
        if not problems and document["packages"][0].get("versionInfo") != version:
            problems = [f"versionInfo is not {version}"]
        if problems:
            sys.exit(f"{path.relative_to(prefix)}: {problems}")
        listed |= {(prefix / file["fileName"]).resolve() for file in document["files"]}
    there = {path.resolve() for path in (root or prefix).rglob("*") if path.is_file() and not path.is_symlink()}
    if there - listed - set(path.resolve() for path in found):
        sys.exit(f"in no SPDX document: {sorted(map(str, there - listed))[:9]}")
