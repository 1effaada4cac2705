// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The NVIDIA driver's side of a pin: persistent (the memory lives until put_pages) or revocable (the driver calls back
 * when the memory is freed). If the driver refuses the first kind (MIG, vGPU), pins are of the second kind.
 */
#include "gdrdrv.h"

#include <linux/module.h>
#include <linux/slab.h>
#include <linux/timex.h>

/* Not in the range of <linux/errno.h> for users: it must not reach user space. */
#define GDRDRV_KERNEL_ENOTSUPP 524

/* Table versions whose layout is known: 1.2 and later 1.x, 2.0 and later 2.x. */
#define TABLE_MAJOR(version) ((version) >> 16)
#define TABLE_MINOR(version) ((version) & 0xffff)

/*
 * Serialises this driver's calls of get_pages and put_pages. A callback may free a table after it was checked and before
 * put_pages, which then finds no such table. Without this lock, a new pin could have got a table at the same address.
 */
static DEFINE_MUTEX(provider_lock);
static atomic_t pages_refcount = ATOMIC_INIT(0);
static bool persistent_refused; /* printed once, when a revocable pin was possible */

int gdrdrv_pages_refcount(void)
{
	return atomic_read(&pages_refcount);
}

bool gdrdrv_provider_is_persistent(void)
{
	return gdrdrv_use_persistent_mapping && !READ_ONCE(persistent_refused);
}

static u64 clock_now(void)
{
#ifdef CONFIG_X86
	return get_cycles();
#else
	return ktime_get_ns();
#endif
}

/* ---- Checking a table --------------------------------------------------------------------------------------------- */

static bool table_is_known(const struct nvidia_p2p_page_table *table, u32 entries)
{
	const u32 major = TABLE_MAJOR(table->version);

	BUILD_BUG_ON(offsetof(struct nvidia_p2p_page_table, pages) != 8);
	BUILD_BUG_ON(offsetof(struct nvidia_p2p_page_table, entries) != 16);
	BUILD_BUG_ON(offsetof(struct nvidia_p2p_page_table, gpu_uuid) != 24);
	BUILD_BUG_ON(offsetof(struct nvidia_p2p_page, physical_address) != 0);
	if ((major != 1 && major != 2) || (major == 1 && TABLE_MINOR(table->version) < 2)) {
		pr_err_ratelimited("pin refused: the GPU driver's page tables have version %u.%u, this gdrdrv knows 1.2 and 2.0: "
				   "a newer gdrdrv is needed\n", major, TABLE_MINOR(table->version));
		return false;
	}
	if (table->page_size != NVIDIA_P2P_PAGE_SIZE_64KB) {
		pr_err_ratelimited("pin refused: the GPU driver's pages are not 64 KiB (kind %u)\n", table->page_size);
		return false;
	}
	if (table->entries != entries) {
		pr_err_ratelimited("pin refused: the GPU driver gave %u pages for %u\n", table->entries, entries);
		return false;
	}
	return true;
}

/* Coherent platforms (Grace) map GPU memory cacheable: the table says so, or the kernel has pages for the memory. */
static bool table_is_cacheable(const struct nvidia_p2p_page_table *table)
{
	if (!IS_ENABLED(CONFIG_ARM64))
		return false;
#ifdef NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE
	BUILD_BUG_ON(offsetof(struct nvidia_p2p_page_table, flags) != 32);
	if (TABLE_MAJOR(table->version) >= 2 && (table->flags & NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE))
		return true;
#endif
	return pfn_valid(table->pages[0]->physical_address >> PAGE_SHIFT);
}

/* Copies what the fault handler needs. -EINVAL: the table has an unknown version, or the memory was already freed. */
static int read_table(struct gdrdrv_region *region)
{
	const struct nvidia_p2p_page_table *table;
	int ret = -EINVAL;
	u32 i;

	down_write(&region->lock);
	table = region->page_table;
	if (!table || region->dead) {
		pr_err_ratelimited("pin refused: 0x%llx was freed meanwhile\n", region->va);
	} else if (table_is_known(table, region->entries)) {
		for (i = 0; i < region->entries; i++)
			region->physical[i] = table->pages[i]->physical_address;
		region->cacheable = !region->force_pcie && table_is_cacheable(table);
		ret = 0;
	}
	up_write(&region->lock);
	return ret;
}

/* ---- Calls of the GPU driver -------------------------------------------------------------------------------------- */

/* Called by the GPU driver, with its own lock held, while it frees the memory. */
static void revoke(void *data)
{
	struct gdrdrv_region *region = data;
	struct nvidia_p2p_page_table *table;

	down_write(&region->lock);
	table = region->page_table;
	region->page_table = NULL;
	region->callback_ran = true;
	up_write(&region->lock);
	gdrdrv_end_mappings(region);
	if (table)
		nvidia_p2p_free_page_table(table);
	atomic_dec(&pages_refcount);
	gdrdrv_region_put(region);
}

static int get_persistent(struct gdrdrv_region *region, u32 flags)
{
	const u32 wanted = flags & GDRDRV_PIN_FORCE_PCIE ? NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING : NVIDIA_P2P_FLAGS_DEFAULT;
	int ret = nvidia_p2p_get_pages_persistent(region->va, region->size_bytes, &region->page_table, wanted);

	if (ret)
		return ret;
	region->persistent = true;
	region->force_pcie = wanted != NVIDIA_P2P_FLAGS_DEFAULT;
	atomic_inc(&pages_refcount);
	return 0;
}

static int get_revocable(struct gdrdrv_region *region)
{
	int ret;

	/* Before the call, because the callback may run before it returns, and undoes these two. */
	kref_get(&region->ref);
	atomic_inc(&pages_refcount);
	ret = nvidia_p2p_get_pages(region->p2p_token, region->va_space, region->va, region->size_bytes, &region->page_table,
				   revoke, region);
	if (ret) {
		atomic_dec(&pages_refcount);
		gdrdrv_region_put(region);
	}
	return ret;
}

static bool is_unsupported(int error)
{
	return error == -GDRDRV_KERNEL_ENOTSUPP || error == -EOPNOTSUPP;
}

static int get_pages(struct gdrdrv_region *region, u32 flags)
{
	int ret;

	if (!gdrdrv_use_persistent_mapping)
		return get_revocable(region);
	ret = get_persistent(region, flags);
	if (!is_unsupported(ret) || flags)
		return ret;
	ret = get_revocable(region);
	if (!ret && !READ_ONCE(persistent_refused)) {
		WRITE_ONCE(persistent_refused, true);
		pr_info("the GPU driver refuses persistent pins: pins end when their memory is freed\n");
	}
	return ret;
}

/* Returns the caller's error for a refusal of the GPU driver, and logs the reason. */
static int explain(const struct gdrdrv_region *region, u32 flags, int ret)
{
	const char *reason = "the GPU driver failed";

	if (is_unsupported(ret)) {
		ret = -EOPNOTSUPP;
		reason = flags ? "the GPU driver cannot force a mapping through BAR1 here" :
				 "the GPU driver does not share this GPU's memory (MIG, vGPU, or no GPUDirect RDMA)";
	} else if (ret == -EINVAL) {
		reason = "not memory of this process on a GPU, or not all of it is allocated";
	} else if (ret == -ENOMEM) {
		reason = "BAR1 is full, or no memory";
	}
	pr_err_ratelimited("pin of 0x%llx + %llu bytes refused (%d): %s\n", region->va, region->size_bytes, ret, reason);
	return ret;
}

int gdrdrv_provider_get(struct gdrdrv_region *region, u32 flags)
{
	u64 start;
	int ret;

	if (gdrdrv_use_persistent_mapping && (region->p2p_token || region->va_space)) {
		pr_err_ratelimited("pin refused: tokens belong to revocable pins (use_persistent_mapping=0)\n");
		return -EINVAL;
	}
	if (!gdrdrv_use_persistent_mapping && flags) {
		pr_err_ratelimited("pin refused: forcing BAR1 needs persistent pins (use_persistent_mapping=1)\n");
		return -EOPNOTSUPP;
	}
	if (mutex_lock_killable(&provider_lock))
		return -EINTR;
	start = clock_now();
	ret = get_pages(region, flags);
	region->get_pages_cycles = clock_now() - start;
	mutex_unlock(&provider_lock);
	if (ret) {
		region->page_table = NULL; /* the GPU driver may have written to it */
		return explain(region, flags, ret);
	}
	region->physical = kvmalloc_array(region->entries, sizeof(*region->physical), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	ret = region->physical ? read_table(region) : -ENOMEM;
	if (ret)
		gdrdrv_provider_put(region);
	return ret;
}

void gdrdrv_provider_put(struct gdrdrv_region *region)
{
	struct nvidia_p2p_page_table *table;
	bool revoked;
	int ret = 0;

	gdrdrv_end_mappings(region);
	mutex_lock(&provider_lock);
	down_read(&region->lock);
	table = region->page_table;
	revoked = region->callback_ran;
	up_read(&region->lock);
	if (revoked)
		goto unlock;
	if (region->persistent)
		ret = nvidia_p2p_put_pages_persistent(region->va, table, 0);
	else
		ret = nvidia_p2p_put_pages(region->p2p_token, region->va_space, region->va, table);
	/* 0 means that the table was unlinked, or that a callback came first. Only callback_ran distinguishes them. */
	down_write(&region->lock);
	revoked = region->callback_ran;
	region->page_table = NULL;
	up_write(&region->lock);
unlock:
	mutex_unlock(&provider_lock);
	if (revoked)
		return;
	if (ret) {
		/* It still has the table and may call back, so the region is never freed. */
		pr_err_ratelimited("the GPU driver did not take back 0x%llx (%d)\n", region->va, ret);
		return;
	}
	atomic_dec(&pages_refcount);
	if (!region->persistent)
		gdrdrv_region_put(region);
}
