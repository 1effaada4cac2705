// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * nvidia_p2p_* with the real driver's rules: alignment, one lock, a callback per revocable table when its memory is freed,
 * tables freed right after the callback, 0 for put_pages of a table that a callback had before. Module parameters make
 * calls fail, wait, or answer like other drivers.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "mock.h"

#ifdef MOCK_EXPORT_GPL
#define MOCK_EXPORT(symbol) EXPORT_SYMBOL_GPL(symbol)
#else
#define MOCK_EXPORT(symbol) EXPORT_SYMBOL(symbol)
#endif

#define KERNEL_ENOTSUPP 524

static int fail_get;
module_param(fail_get, int, 0644);
MODULE_PARM_DESC(fail_get, "errno with which pages are refused; 0: none");
static int fail_persistent;
module_param(fail_persistent, int, 0644);
MODULE_PARM_DESC(fail_persistent, "errno with which persistent pages are refused; 0: none");
static uint table_version = NVIDIA_P2P_PAGE_TABLE_VERSION;
module_param(table_version, uint, 0644);
static uint page_kind = NVIDIA_P2P_PAGE_SIZE_64KB;
module_param(page_kind, uint, 0644);
static int entries_off;
module_param(entries_off, int, 0644);
MODULE_PARM_DESC(entries_off, "so many pages too few are reported");
static uint get_wait_ms;
module_param(get_wait_ms, uint, 0644);
MODULE_PARM_DESC(get_wait_ms, "after pages were taken, without the lock: time for a free to come before get_pages returns");

struct mock_table {
	struct nvidia_p2p_page_table table;
	struct list_head entry;
	bool persistent;
	pid_t tgid;
	u64 address, bytes;
	u32 count;
	u32 *numbers; /* of BAR pages, referenced */
	struct nvidia_p2p_page *pages;
	void (*callback)(void *data);
	void *data;
	uint8_t uuid[16];
};

static LIST_HEAD(tables);
static struct task_struct *in_callback;

static void table_free(struct mock_table *table)
{
	u32 i;

	for (i = 0; i < table->count; i++)
		mock_page_put(table->numbers[i]);
	kvfree(table->numbers);
	kvfree(table->pages);
	kvfree(table->table.pages);
	kfree(table);
}

static void table_unlink(struct mock_table *table)
{
	list_del(&table->entry);
	if (table->persistent)
		mock_statistics.persistent_tables--;
	else
		mock_statistics.revocable_tables--;
}

/* The BAR page behind an address of the calling process, or -1. */
static s64 page_at(u64 address)
{
	struct mock_binding *binding;

	list_for_each_entry(binding, &mock_bindings, entry)
		if (binding->tgid == current->tgid && address >= binding->address && address - binding->address < binding->bytes)
			return binding->object->pages[(binding->offset + address - binding->address) >> MOCK_PAGE_SHIFT];
	return -1;
}

static int table_fill(struct mock_table *table)
{
	const u32 count = table->bytes >> MOCK_PAGE_SHIFT;
	u32 i;

	table->numbers = kvmalloc_array(count, sizeof(u32), GFP_KERNEL);
	table->pages = kvcalloc(count, sizeof(*table->pages), GFP_KERNEL);
	table->table.pages = kvcalloc(count, sizeof(*table->table.pages), GFP_KERNEL);
	if (!table->numbers || !table->pages || !table->table.pages)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		const s64 page = page_at(table->address + i * MOCK_PAGE_SIZE);

		if (page < 0)
			return -EINVAL;
		mock_page_get(page);
		table->numbers[i] = page;
		table->count++;
		table->pages[i].physical_address = mock_physical(page);
		table->table.pages[i] = &table->pages[i];
	}
	table->table.version = table_version;
	table->table.page_size = page_kind;
	table->table.entries = count - entries_off;
	table->table.gpu_uuid = table->uuid;
	return 0;
}

static int get_locked(struct mock_table **out, bool persistent, u64 address, u64 bytes)
{
	struct mock_table *table;
	int ret;

	/* The real driver takes whatever fits; here a table larger than the board cannot be right. */
	if ((address | bytes) & (MOCK_PAGE_SIZE - 1) || bytes == 0 || bytes > 1ULL << 32)
		return -EINVAL;
	table = kzalloc(sizeof(*table), GFP_KERNEL);
	if (!table)
		return -ENOMEM;
	table->persistent = persistent;
	table->tgid = current->tgid;
	table->address = address;
	table->bytes = bytes;
	ret = table_fill(table);
	if (ret) {
		table_free(table);
		return ret;
	}
	list_add(&table->entry, &tables);
	if (persistent)
		mock_statistics.persistent_tables++;
	else
		mock_statistics.revocable_tables++;
	*out = table;
	return 0;
}

int nvidia_p2p_get_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address, uint64_t length,
			 struct nvidia_p2p_page_table **page_table, void (*free_callback)(void *data), void *data)
{
	struct mock_table *table;
	int ret;

	if (fail_get)
		return -fail_get;
	if (p2p_token || va_space || !free_callback || !data)
		return -EINVAL;
	mutex_lock(&mock_rm_lock);
	ret = get_locked(&table, false, virtual_address, length);
	if (!ret) {
		table->callback = free_callback;
		table->data = data;
		*page_table = &table->table;
	}
	mutex_unlock(&mock_rm_lock);
	if (get_wait_ms)
		msleep(get_wait_ms);
	return ret;
}
MOCK_EXPORT(nvidia_p2p_get_pages);

int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length, struct nvidia_p2p_page_table **page_table,
				    uint32_t flags)
{
	struct mock_table *table;
	int ret;

	if (fail_get)
		return -fail_get;
	if (fail_persistent)
		return -fail_persistent;
	if (flags & ~NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING)
		return -EINVAL;
	if (flags)
		return -KERNEL_ENOTSUPP; /* a coherent platform only */
	mutex_lock(&mock_rm_lock);
	ret = get_locked(&table, true, virtual_address, length);
	if (!ret)
		*page_table = &table->table;
	mutex_unlock(&mock_rm_lock);
	if (get_wait_ms)
		msleep(get_wait_ms);
	return ret;
}
MOCK_EXPORT(nvidia_p2p_get_pages_persistent);

static struct mock_table *find(const struct nvidia_p2p_page_table *wanted, u64 address, bool persistent)
{
	struct mock_table *table;

	list_for_each_entry(table, &tables, entry)
		if (&table->table == wanted && table->address == address && table->persistent == persistent)
			return table;
	return NULL;
}

int nvidia_p2p_put_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	struct mock_table *table;

	if (READ_ONCE(in_callback) == current) {
		mock_statistics.puts_in_callback++;
		return -EINVAL;
	}
	mutex_lock(&mock_rm_lock);
	table = find(page_table, virtual_address, false);
	if (table) {
		table_unlink(table);
		table_free(table);
	} else {
		mock_statistics.late_puts++;
	}
	mutex_unlock(&mock_rm_lock);
	return 0;
}
MOCK_EXPORT(nvidia_p2p_put_pages);

int nvidia_p2p_put_pages_persistent(uint64_t virtual_address, struct nvidia_p2p_page_table *page_table, uint32_t flags)
{
	struct mock_table *table;

	if (flags)
		return -EINVAL;
	mutex_lock(&mock_rm_lock);
	table = find(page_table, virtual_address, true);
	if (table) {
		table_unlink(table);
		table_free(table);
	} else {
		mock_statistics.unknown_puts++;
	}
	mutex_unlock(&mock_rm_lock);
	return table ? 0 : -EINVAL;
}
MOCK_EXPORT(nvidia_p2p_put_pages_persistent);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	return page_table ? 0 : -EINVAL;
}
MOCK_EXPORT(nvidia_p2p_free_page_table);

void mock_revoke(pid_t tgid, u64 address, u64 bytes)
{
	struct mock_table *table, *next;

	lockdep_assert_held(&mock_rm_lock);
	list_for_each_entry_safe(table, next, &tables, entry) {
		if (table->persistent || table->tgid != tgid || table->address >= address + bytes ||
		    address >= table->address + table->bytes)
			continue;
		/* Linked while it runs, as in the real driver. */
		WRITE_ONCE(in_callback, current);
		table->callback(table->data);
		WRITE_ONCE(in_callback, NULL);
		mock_statistics.callbacks++;
		table_unlink(table);
		table_free(table);
	}
}
