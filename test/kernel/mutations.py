# SPDX-License-Identifier: Apache-2.0
"""Mistakes that the suite must catch, the stock driver's known ones among them, as edits of a copy of the driver's sources. The
driver itself has no switches for them. An edit whose old text is no longer there stops the build: mend it with the code.

All mutants are one build: they share the objects of the files that they do not change.
"""

import fcntl
import hashlib
import re
import shutil
from dataclasses import dataclass

import modules


@dataclass(frozen=True)
class Mutant:
    name: str
    why: str
    edits: tuple  # (file, old text, new text)
    tests: tuple  # those that must fail
    revocable: bool = False  # the mode in which they do
    crashes: bool = False  # the kernel may go down with it: a guest of its own
    lockdep: bool = False  # only lockdep sees it: for the debug kernel
    passes: bool = False  # no mistake but a change under which the tests must pass


def drop(file, text):
    return (file, text, "")


MUTANTS = (
    Mutant("control", "nothing is changed", (), ("bytes_cross", "unknown_handles", "mappings_are_whole", "pages_are_write_combining",
                                                 "fork_inherits_nothing", "bad_ranges", "bad_pointers", "provider_refuses"), passes=True),
    Mutant("control_revocable", "nothing is changed", (), ("free_under_a_mapping_revokes", "free_while_mapping", "free_and_unpin"),
           revocable=True, passes=True),
    Mutant("handles_wrap", "handles start a little below their end",
           (("file.c", "\tfile->regions = RB_ROOT;\n", "\tfile->regions = RB_ROOT;\n\tfile->next_handle = GDRDRV_HANDLE_END - 300;\n"),),
           ("handles_are_ranges", "unknown_handles", "bytes_cross", "lives_at_once"), passes=True),

    # Of the stock driver, 2.6.
    Mutant("oldest_lookup", "an unknown handle means the oldest region",
           (("region.c", "\tmutex_unlock(&file->lock);\n\treturn found;\n",
             "\tif (!found && rb_first(&file->regions)) {\n\t\tfound = region_of(rb_first(&file->regions));\n"
             "\t\tkref_get(&found->ref);\n\t}\n\tmutex_unlock(&file->lock);\n\treturn found;\n"),),
           ("unknown_handles",)),
    Mutant("no_split_hook", "a part of a mapping may be unmapped",
           (drop("mmap.c", "\t.GDRDRV_MAY_SPLIT = gdrdrv_vma_may_split,\n"), drop("mmap.c", "\t.mremap = gdrdrv_vma_mremap,\n"),
            ("mmap.c", "static int gdrdrv_vma_may_split", "static int __maybe_unused gdrdrv_vma_may_split"),
            ("mmap.c", "static int gdrdrv_vma_mremap", "static int __maybe_unused gdrdrv_vma_mremap")),
           ("mappings_are_whole",)),
    Mutant("unreferenced_callback", "the GPU driver's callback holds no reference to its region",
           (drop("provider.c", "\tkref_get(&region->ref);\n"),
            ("provider.c", "\tatomic_dec(&pages_refcount);\n\tgdrdrv_region_put(region);\n}\n",
             "\tatomic_dec(&pages_refcount);\n\tmsleep(20);\n\tregion->dead = true;\n}\n"),
            ("provider.c", "\t\tatomic_dec(&pages_refcount);\n\t\tgdrdrv_region_put(region);\n\t}\n\treturn ret;\n",
             "\t\tatomic_dec(&pages_refcount);\n\t}\n\treturn ret;\n"),
            drop("provider.c", "\tif (!region->persistent)\n\t\tgdrdrv_region_put(region);\n"),
            ("provider.c", "#include <linux/timex.h>\n", "#include <linux/delay.h>\n#include <linux/timex.h>\n")),
           ("free_and_unpin",), revocable=True, crashes=True),

    # Others that were met or considered.
    Mutant("unreferenced_mapping", "a mapping holds no reference to its region",
           (("mmap.c", "\tif (!reason)\n\t\treturn 0;\n", "\tif (!reason) {\n\t\tgdrdrv_region_put(region);\n\t\treturn 0;\n\t}\n"),
            ("mmap.c", "\t\tregion->type = GDRDRV_MAPPING_NONE;\n\tup_write(&region->lock);\n\tgdrdrv_region_put(region);\n",
             "\t\tregion->type = GDRDRV_MAPPING_NONE;\n\tup_write(&region->lock);\n")),
           ("unpin_under_a_mapping",), crashes=True),
    Mutant("eager_map", "mmap fills the page table before the kernel links the mapping",
           (("mmap.c", "\tif (!reason)\n\t\treturn 0;\n",
             "\tif (!reason) {\n\t\tunsigned long at;\n\n\t\tfor (at = 0; at < vma->vm_end - vma->vm_start; at += PAGE_SIZE)\n"
             "\t\t\tvmf_insert_pfn_prot(vma, vma->vm_start + at, (region->physical[at >> 16] + (at & 0xffff)) >> PAGE_SHIFT,\n"
             "\t\t\t\t\t    vma->vm_page_prot);\n\t\tmsleep(5);\n\t\treturn 0;\n\t}\n"),
            ("mmap.c", "#include <linux/pci.h>\n", "#include <linux/delay.h>\n#include <linux/pci.h>\n")),
           ("free_while_mapping",), revocable=True),
    Mutant("no_memtype", "write-combining is asked for and not registered",
           (("mmap.c", "\tif (region->cacheable || host_needs_device_type)\n\t\treturn false;\n", "\tif (region)\n\t\treturn true;\n"),
            ("mmap.c", "static bool host_needs_device_type;", "static bool __maybe_unused host_needs_device_type;"),
            ("mmap.c", "\trelease_until(region, region->entries);\n", "\tif (!region)\n\t\trelease_until(region, region->entries);\n")),
           ("pages_are_write_combining",)),
    Mutant("trusted_put", "what put_pages answers is taken for the truth",
           (drop("provider.c", "\tif (revoked)\n\t\tgoto unlock;\n"),
            ("provider.c", "unlock:\n\tmutex_unlock(&provider_lock);\n\tif (revoked)\n\t\treturn;\n", "\tmutex_unlock(&provider_lock);\n"),
            ("provider.c", "\tbool revoked;\n", "\tbool __maybe_unused revoked;\n")),
           ("free_under_a_mapping_revokes",), revocable=True, crashes=True),
    Mutant("no_zap", "a callback leaves the page table as it is",
           (("mmap.c", "\tif (has_handle) /*", "\tif (has_handle && region->persistent) /*"),), ("free_under_a_mapping_revokes",), revocable=True),
    Mutant("stays_alive", "a callback clears the page table, and the next fault fills it again", (drop("mmap.c", "\tregion->dead = true;\n"),),
           ("free_under_a_mapping_revokes",), revocable=True),
    Mutant("inherited", "children inherit mappings", (("mmap.c", "VM_DONTDUMP | VM_DONTCOPY", "VM_DONTDUMP"),), ("fork_inherits_nothing",)),
    Mutant("no_owner", "any process may use a descriptor",
           (("file.c", "\treturn current->tgid == file->owner_tgid && ", "\treturn file->owner_tgid || "),), ("fork_inherits_nothing",)),
    Mutant("zero_size", "no bytes at an odd address are one page, as in the stock driver",
           (("region.c", "params->addr == 0 || params->size == 0", "params->addr == 0"),
            ("region.c", "\tif (last < params->addr || ", "\tif (")), ("bad_ranges",)),
    Mutant("untold_pin", "a pin whose handle could not be told stays",
           (("file.c", "\t\tgdrdrv_unpin(region);\n\t\tret = -EFAULT;\n", "\t\tret = -EFAULT;\n"),), ("bad_pointers",)),
    Mutant("kernel_errno", "the kernel's own ENOTSUPP reaches user space", (drop("provider.c", "\t\tret = -EOPNOTSUPP;\n"),),
           ("provider_refuses",)),
    Mutant("callback_takes_file_lock", "the callback takes the lock under which the GPU driver is called",
           (("provider.c", "\tdown_write(&region->lock);\n\ttable = region->page_table;\n\tregion->page_table = NULL;\n",
             "\tmutex_lock(&region->file->lock);\n\tmutex_unlock(&region->file->lock);\n"
             "\tdown_write(&region->lock);\n\ttable = region->page_table;\n\tregion->page_table = NULL;\n"),
            ("region.c", "\tret = gdrdrv_provider_get(region, flags);\n",
             "\tmutex_lock(&file->lock);\n\tret = gdrdrv_provider_get(region, flags);\n\tmutex_unlock(&file->lock);\n")),
           ("free_under_a_mapping_revokes",), revocable=True, lockdep=True),
)


def edited(mutant):
    """{file: its text with the mutant's edits}, of those that it changes."""
    texts = {}
    for name, old, new in mutant.edits:
        text = texts.get(name) or (modules.DRIVER / name).read_text()
        if text.count(old) != 1:
            raise modules.BuildError(f"mutant {mutant.name}: this text is {text.count(old)} times in {name}, not once:\n{old}")
        texts[name] = text.replace(old, new)
    return texts


def write_sources(folder, wanted):
    for path in modules.sources_of(modules.GDRDRV):
        shutil.copy2(path, folder / path.name)
    units = re.search(r"^gdrdrv-y := (.*)$", (folder / "Kbuild").read_text(), re.M).group(1).split()
    lines = ["ccflags-y := -I$(GDRDRV_UAPI)"]
    for mutant in wanted:
        texts = edited(mutant)
        own = {name: f"{mutant.name}_{name}" for name in texts}
        for name, text in texts.items():
            (folder / own[name]).write_text(text)
        objects = [own.get(unit[:-2] + ".c", unit).removesuffix(".c").removesuffix(".o") + ".o" for unit in units]
        lines += [f"obj-m += mutant_{mutant.name}.o", f"mutant_{mutant.name}-y := {' '.join(objects)}"]
    (folder / "Kbuild").write_text("\n".join(lines) + "\n")


def build(kernel, wanted, cache):
    """{mutant's name: its module}. The stub must have been built."""
    folder = cache / kernel.release / "mutants"
    symbols = cache / kernel.release / "stub" / "Module.symvers"
    digest = hashlib.sha256(repr((kernel.release, wanted, symbols.read_text())).encode())
    for path in [*modules.sources_of(modules.GDRDRV), *modules.HEADERS]:
        digest.update(path.read_bytes())
    key = digest.hexdigest()
    paths = {mutant.name: folder / f"mutant_{mutant.name}.ko" for mutant in wanted}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "mutants.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "key"
        if stamp.exists() and stamp.read_text() == key and all(path.exists() for path in paths.values()):
            return paths
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write_sources(folder, wanted)
        modules.make(kernel, folder, ["-j2", f"GDRDRV_UAPI={modules.ROOT / 'uapi'}", f"KBUILD_EXTRA_SYMBOLS={symbols}"])
        stamp.write_text(key)
    return paths
