// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The user's side of a pin. mmap only prepares. The fault handler inserts PTEs, after it has checked under region->lock
 * that the memory is still pinned. An mmap that filled the VMA itself could do so after the zap of a concurrent free: zapping
 * finds only VMAs that the kernel has linked, and the kernel links a VMA after its mmap.
 *
 * Memory types. On x86 the kernel replaces the type of a PTE by the one that is registered for its physical range, and by
 * uncached if none is. So the range of a pin is registered as write-combining for as long as it may be mapped.
 */
#include "gdrdrv.h"

#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>

static bool host_needs_device_type;

void gdrdrv_mmap_init(void)
{
#if defined(CONFIG_ARM64) && defined(CONFIG_PCI)
	/* On BlueField-3 as the host, the CPU must not combine writes to the GPU. */
	static const struct pci_device_id hosts[] = { { PCI_DEVICE(0x15b3, 0xa2da) }, { PCI_DEVICE(0x15b3, 0xa2db) }, {} };

	host_needs_device_type = pci_dev_present(hosts);
#endif
}

/* ---- Memory types ------------------------------------------------------------------------------------------------- */

/* The number of GPU pages from `first` on that are physically contiguous. */
static u32 run_length(const struct gdrdrv_region *region, u32 first)
{
	u32 next = first + 1;

	while (next < region->entries && region->physical[next] == region->physical[next - 1] + GDRDRV_GPU_PAGE_SIZE)
		next++;
	return next - first;
}

static void release_until(const struct gdrdrv_region *region, u32 end)
{
	u32 page, length;

	for (page = 0; page < end; page += length) {
		length = run_length(region, page);
		arch_io_free_memtype_wc(region->physical[page], length * GDRDRV_GPU_PAGE_SIZE);
	}
}

bool gdrdrv_memtype_reserve(const struct gdrdrv_region *region)
{
	u32 page, length;

	if (region->cacheable || host_needs_device_type)
		return false;
	for (page = 0; page < region->entries; page += length) {
		length = run_length(region, page);
		if (arch_io_reserve_memtype_wc(region->physical[page], length * GDRDRV_GPU_PAGE_SIZE)) {
			pr_err_ratelimited("0x%llx: somebody maps this part of BAR1 with another memory type: not write-combining\n",
					   region->va);
			release_until(region, page);
			return false;
		}
	}
	return true;
}

void gdrdrv_memtype_release(const struct gdrdrv_region *region)
{
	release_until(region, region->entries);
}

static u32 natural_type(const struct gdrdrv_region *region)
{
	if (region->cacheable)
		return GDRDRV_MAPPING_CACHED;
	return region->memtype_reserved ? GDRDRV_MAPPING_WC : GDRDRV_MAPPING_DEVICE;
}

int gdrdrv_request_type(struct gdrdrv_region *region, u32 type)
{
	int ret = 0;

	if (type > GDRDRV_MAPPING_DEVICE)
		return -EINVAL;
	down_write(&region->lock);
	if (region->mappings)
		ret = -EBUSY;
	else if (type != GDRDRV_MAPPING_NONE && type != natural_type(region))
		ret = -EOPNOTSUPP;
	else
		region->requested_type = type;
	up_write(&region->lock);
	return ret;
}

static pgprot_t protection_of(pgprot_t prot, u32 type)
{
#ifdef CONFIG_X86
	/* By hand: pgprot_writecombine and pgprot_decrypted are reserved to GPL modules (driver/README.md). */
	const enum page_cache_mode mode = type == GDRDRV_MAPPING_WC ? _PAGE_CACHE_MODE_WC : _PAGE_CACHE_MODE_UC_MINUS;

	return __pgprot(__sme_clr((pgprot_val(prot) & ~_PAGE_CACHE_MASK) | cachemode2protval(mode)));
#else
	if (type == GDRDRV_MAPPING_WC)
		return pgprot_writecombine(prot);
	if (type == GDRDRV_MAPPING_DEVICE)
		return pgprot_device(prot);
	return prot;
#endif
}

/* ---- Faults ------------------------------------------------------------------------------------------------------- */

/* Maps the part of the GPU page around the address that is in the VMA. */
static vm_fault_t gdrdrv_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct gdrdrv_region *region = vma->vm_private_data;
	const unsigned long address = vmf->address & PAGE_MASK;
	const u64 offset = (u64)(vmf->pgoff - region->handle) << PAGE_SHIFT;
	const u64 in_page = offset & (GDRDRV_GPU_PAGE_SIZE - 1);
	const u64 index = offset >> GDRDRV_GPU_PAGE_SHIFT;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	unsigned long neighbour, end;
	u64 physical;

	down_read(&region->lock);
	if (region->dead || index >= region->entries)
		goto unlock;
	physical = region->physical[index];
	ret = vmf_insert_pfn_prot(vma, address, (physical + in_page) >> PAGE_SHIFT, vma->vm_page_prot);
	if (ret != VM_FAULT_NOPAGE)
		goto unlock;
	/* Also maps the neighbours. If one fails, it faults later. */
	neighbour = max_t(unsigned long, vma->vm_start, address - in_page);
	end = min_t(unsigned long, vma->vm_end, address - in_page + GDRDRV_GPU_PAGE_SIZE);
	physical -= address - in_page;
	for (; neighbour < end; neighbour += PAGE_SIZE)
		if (neighbour != address &&
		    vmf_insert_pfn_prot(vma, neighbour, (physical + neighbour) >> PAGE_SHIFT, vma->vm_page_prot) != VM_FAULT_NOPAGE)
			break;
unlock:
	up_read(&region->lock);
	return ret;
}

static void gdrdrv_vma_open(struct vm_area_struct *vma)
{
	struct gdrdrv_region *region = vma->vm_private_data;

	kref_get(&region->ref);
	down_write(&region->lock);
	region->mappings++;
	up_write(&region->lock);
}

static void gdrdrv_vma_close(struct vm_area_struct *vma)
{
	struct gdrdrv_region *region = vma->vm_private_data;

	down_write(&region->lock);
	if (--region->mappings == 0)
		region->type = GDRDRV_MAPPING_NONE;
	up_write(&region->lock);
	gdrdrv_region_put(region);
}

/* A mapping is complete or absent, so a partial munmap is refused. */
static int gdrdrv_vma_may_split(struct vm_area_struct *vma, unsigned long address)
{
	return -EINVAL;
}

static int gdrdrv_vma_mremap(GDRDRV_MREMAP_ARGUMENTS)
{
	return -EINVAL;
}

static const struct vm_operations_struct gdrdrv_vm_ops = {
	.open = gdrdrv_vma_open,
	.close = gdrdrv_vma_close,
	.GDRDRV_MAY_SPLIT = gdrdrv_vma_may_split,
	.mremap = gdrdrv_vma_mremap,
	.fault = gdrdrv_fault,
};

/* The reason why a region cannot be mapped now; NULL if it can. */
static const char *why_not(const struct gdrdrv_region *region, const struct vm_area_struct *vma)
{
	lockdep_assert_held(&region->lock);
	if (!(vma->vm_flags & VM_SHARED))
		return "not MAP_SHARED";
	if (region->dead)
		return "the memory has been freed";
	if (region->mappings)
		return "it is mapped already";
	if (region->offset_bytes)
		return "the pinned address is not a multiple of 64 KiB";
	if (vma->vm_end - vma->vm_start > region->size_bytes)
		return "longer than the pin";
	return NULL;
}

int gdrdrv_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct gdrdrv_file *file = filp->private_data;
	struct gdrdrv_region *region;
	const char *reason;

	if (!gdrdrv_is_owner(file))
		return -EACCES;
	region = gdrdrv_region_find(file, vma->vm_pgoff);
	if (!region)
		return -EINVAL;
	down_write(&region->lock);
	reason = why_not(region, vma);
	if (!reason) {
		region->mappings = 1;
		region->type = region->requested_type ? region->requested_type : natural_type(region);
		vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
		vma->vm_page_prot = protection_of(vma->vm_page_prot, region->type);
		vma->vm_ops = &gdrdrv_vm_ops;
		vma->vm_private_data = region; /* takes over the reference of the search */
	}
	up_write(&region->lock);
	if (!reason)
		return 0;
	pr_err_ratelimited("mmap of handle 0x%lx refused: %s\n", vma->vm_pgoff, reason);
	gdrdrv_region_put(region);
	return -EINVAL;
}

/* ---- The end ------------------------------------------------------------------------------------------------------ */

void gdrdrv_end_mappings(struct gdrdrv_region *region)
{
	bool has_handle, reserved;

	down_write(&region->lock);
	region->dead = true;
	has_handle = region->has_handle; /* this does not change: a dead region gets no handle */
	reserved = region->memtype_reserved;
	region->memtype_reserved = false;
	up_write(&region->lock);
	if (has_handle) /* otherwise it was never mapped */
		unmap_mapping_range(&region->file->mapping, (loff_t)region->handle << PAGE_SHIFT,
				    (loff_t)region->host_pages << PAGE_SHIFT, 1);
	if (reserved)
		gdrdrv_memtype_release(region);
}
