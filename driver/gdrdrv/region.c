// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A pin. Handles are ranges of page offsets, unique in the file and below 2^32. The search for the next one starts after
 * the last one that was assigned, so a stale handle stays unknown for as long as possible.
 */
#include "gdrdrv.h"

#include <linux/module.h>
#include <linux/slab.h>

static void region_free(struct kref *ref)
{
	struct gdrdrv_region *region = container_of(ref, struct gdrdrv_region, ref);

	kvfree(region->physical);
	gdrdrv_file_put(region->file);
	kfree(region);
}

void gdrdrv_region_put(struct gdrdrv_region *region)
{
	kref_put(&region->ref, region_free);
}

static struct gdrdrv_region *region_of(struct rb_node *node)
{
	return rb_entry(node, struct gdrdrv_region, node);
}

/* ---- Handles ------------------------------------------------------------------------------------------------------ */

/* The first region that ends after `handle`; NULL if there is none. */
static struct gdrdrv_region *first_behind(struct gdrdrv_file *file, u64 handle)
{
	struct rb_node *node = file->regions.rb_node;
	struct gdrdrv_region *found = NULL;

	while (node) {
		struct gdrdrv_region *region = region_of(node);

		if (region->handle + region->host_pages > handle) {
			found = region;
			node = node->rb_left;
		} else {
			node = node->rb_right;
		}
	}
	return found;
}

/* A free range of `pages` at or after `start`; GDRDRV_HANDLE_END if there is none. */
static u64 find_gap(struct gdrdrv_file *file, u64 start, u64 pages)
{
	struct gdrdrv_region *region = first_behind(file, start);
	u64 candidate = start;

	while (region) {
		struct rb_node *next = rb_next(&region->node);

		if (region->handle >= candidate && region->handle - candidate >= pages)
			return candidate;
		candidate = region->handle + region->host_pages;
		region = next ? region_of(next) : NULL;
	}
	return candidate <= GDRDRV_HANDLE_END && GDRDRV_HANDLE_END - candidate >= pages ? candidate : GDRDRV_HANDLE_END;
}

/* Assigns a handle and inserts the region into the tree. -EINVAL: its memory was freed meanwhile. -ENOSPC: no handle left. */
static int region_link(struct gdrdrv_file *file, struct gdrdrv_region *region, bool memtype_reserved)
{
	struct rb_node **link = &file->regions.rb_node, *parent = NULL;
	u64 handle;

	lockdep_assert_held(&file->lock);
	lockdep_assert_held_write(&region->lock);
	if (region->dead)
		return -EINVAL;
	handle = find_gap(file, file->next_handle, region->host_pages);
	if (handle == GDRDRV_HANDLE_END)
		handle = find_gap(file, 0, region->host_pages);
	if (handle == GDRDRV_HANDLE_END)
		return -ENOSPC;
	while (*link) {
		parent = *link;
		link = handle < region_of(parent)->handle ? &parent->rb_left : &parent->rb_right;
	}
	region->handle = handle;
	region->memtype_reserved = memtype_reserved;
	region->linked = true;
	region->has_handle = true;
	kref_get(&region->ref);
	rb_link_node(&region->node, parent, link);
	rb_insert_color(&region->node, &file->regions);
	file->next_handle = handle + region->host_pages;
	return 0;
}

struct gdrdrv_region *gdrdrv_region_find(struct gdrdrv_file *file, u64 handle)
{
	struct rb_node *node;
	struct gdrdrv_region *found = NULL;

	mutex_lock(&file->lock);
	for (node = file->regions.rb_node; node;) {
		struct gdrdrv_region *region = region_of(node);

		if (region->handle == handle) {
			kref_get(&region->ref);
			found = region;
			break;
		}
		node = handle < region->handle ? node->rb_left : node->rb_right;
	}
	mutex_unlock(&file->lock);
	return found;
}

/* ---- Pinning ------------------------------------------------------------------------------------------------------ */

static struct gdrdrv_region *region_new(struct gdrdrv_file *file, const struct gdrdrv_pin_buffer *params)
{
	const u64 mask = GDRDRV_GPU_PAGE_SIZE - 1;
	const u64 last = params->addr + params->size - 1;
	const u64 start = params->addr & ~mask;
	struct gdrdrv_region *region;

	if (params->addr == 0 || params->size == 0) {
		pr_err_ratelimited("pin refused: address 0x%llx, size %llu: neither may be 0\n", params->addr, params->size);
		return ERR_PTR(-EINVAL);
	}
	if (last < params->addr || ((last | mask) - start) >> PAGE_SHIFT >= GDRDRV_HANDLE_END ||
	    ((last | mask) - start) >> GDRDRV_GPU_PAGE_SHIFT >= INT_MAX) {
		pr_err_ratelimited("pin refused: 0x%llx + %llu bytes is not a range of GPU memory\n", params->addr, params->size);
		return ERR_PTR(-EINVAL);
	}
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return ERR_PTR(-ENOMEM);
	kref_init(&region->ref);
	init_rwsem(&region->lock);
	kref_get(&file->ref);
	region->file = file;
	region->va = start;
	region->offset_bytes = params->addr - start;
	region->size_bytes = (last | mask) - start + 1;
	region->entries = region->size_bytes >> GDRDRV_GPU_PAGE_SHIFT;
	region->host_pages = max_t(u64, 1, region->size_bytes >> PAGE_SHIFT);
	region->p2p_token = params->p2p_token;
	region->va_space = params->va_space;
	return region;
}

struct gdrdrv_region *gdrdrv_pin(struct gdrdrv_file *file, const struct gdrdrv_pin_buffer *params, u32 flags)
{
	struct gdrdrv_region *region = region_new(file, params);
	bool reserved;
	int ret;

	if (IS_ERR(region))
		return region;
	ret = gdrdrv_provider_get(region, flags);
	if (ret) {
		gdrdrv_region_put(region);
		return ERR_PTR(ret);
	}
	/* Before the locks, because it allocates memory. */
	reserved = gdrdrv_memtype_reserve(region);
	mutex_lock(&file->lock);
	down_write(&region->lock);
	ret = region_link(file, region, reserved);
	up_write(&region->lock);
	mutex_unlock(&file->lock);
	if (ret) {
		pr_err_ratelimited("pin of 0x%llx + %llu bytes refused: %s\n", params->addr, params->size,
				   ret == -ENOSPC ? "no handle is left" : "the memory was freed meanwhile");
		if (reserved)
			gdrdrv_memtype_release(region);
		gdrdrv_provider_put(region);
		gdrdrv_region_put(region);
		return ERR_PTR(ret);
	}
	gdrdrv_debug("pinned 0x%llx + %llu bytes as 0x%llx, %s\n", region->va, region->size_bytes, region->handle,
		     region->persistent ? "persistent" : "revocable");
	return region;
}

int gdrdrv_unpin(struct gdrdrv_region *region)
{
	struct gdrdrv_file *file = region->file;
	bool linked;

	mutex_lock(&file->lock);
	linked = region->linked;
	if (linked)
		rb_erase(&region->node, &file->regions);
	region->linked = false;
	mutex_unlock(&file->lock);
	if (!linked)
		return -EINVAL;
	gdrdrv_provider_put(region);
	gdrdrv_debug("unpinned 0x%llx\n", region->handle);
	gdrdrv_region_put(region);
	return 0;
}

void gdrdrv_unpin_all(struct gdrdrv_file *file)
{
	for (;;) {
		struct rb_node *first;
		struct gdrdrv_region *region;

		mutex_lock(&file->lock);
		first = rb_first(&file->regions);
		if (first)
			kref_get(&region_of(first)->ref);
		mutex_unlock(&file->lock);
		if (!first)
			return;
		region = region_of(first);
		gdrdrv_unpin(region);
		gdrdrv_region_put(region);
	}
}
