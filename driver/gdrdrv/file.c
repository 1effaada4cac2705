// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Open, release and the nine ioctls. User memory is copied only here, where no lock is held. */
#include "gdrdrv.h"

#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#ifdef CONFIG_X86
#include <asm/tsc.h>
#endif

#define GDRDRV_IOC_MAGIC 0xDA

static void file_free(struct kref *ref)
{
	kfree(container_of(ref, struct gdrdrv_file, ref));
}

void gdrdrv_file_put(struct gdrdrv_file *file)
{
	kref_put(&file->ref, file_free);
}

bool gdrdrv_is_owner(const struct gdrdrv_file *file)
{
	return current->tgid == file->owner_tgid && current->group_leader->start_time == file->owner_start_time;
}

/*
 * Each open file has its own address_space, so zapping by file offset never reaches another file's mappings. It never has
 * pages, only VMAs. Each VMA holds a reference to the file, so the address_space is empty when the file is released.
 */
static int gdrdrv_open(struct inode *inode, struct file *filp)
{
	struct gdrdrv_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);

	if (!file)
		return -ENOMEM;
	kref_init(&file->ref);
	mutex_init(&file->lock);
	file->regions = RB_ROOT;
	file->owner_tgid = current->tgid;
	file->owner_start_time = current->group_leader->start_time;
	address_space_init_once(&file->mapping);
	file->mapping.host = inode;
	file->mapping.a_ops = inode->i_mapping->a_ops;
	filp->f_mapping = &file->mapping;
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}

static int gdrdrv_release(struct inode *inode, struct file *filp)
{
	struct gdrdrv_file *file = filp->private_data;

	gdrdrv_unpin_all(file);
	filp->f_mapping = inode->i_mapping;
	gdrdrv_file_put(file);
	return 0;
}

/* Pins, and returns the handle. Another thread of the caller may have unpinned it in between, which is its own mistake. */
static int pin_and_tell(struct gdrdrv_file *file, const struct gdrdrv_pin_buffer *params, u32 flags, u64 __user *handle)
{
	struct gdrdrv_region *region = gdrdrv_pin(file, params, flags);
	int ret = 0;

	if (IS_ERR(region))
		return PTR_ERR(region);
	if (put_user(region->handle, handle)) {
		gdrdrv_unpin(region);
		ret = -EFAULT;
	}
	gdrdrv_region_put(region);
	return ret;
}

static int ioctl_pin(struct gdrdrv_file *file, void __user *argument)
{
	struct gdrdrv_pin_buffer __user *user = argument;
	struct gdrdrv_pin_buffer params;

	if (copy_from_user(&params, user, sizeof(params)))
		return -EFAULT;
	return pin_and_tell(file, &params, 0, &user->handle);
}

static int ioctl_pin_v2(struct gdrdrv_file *file, void __user *argument)
{
	struct gdrdrv_pin_buffer_v2 __user *user = argument;
	struct gdrdrv_pin_buffer_v2 params;
	struct gdrdrv_pin_buffer plain = {};

	if (copy_from_user(&params, user, sizeof(params)))
		return -EFAULT;
	if (params.flags & ~(u32)GDRDRV_PIN_FORCE_PCIE) {
		pr_err_ratelimited("pin refused: unknown flags 0x%x\n", params.flags);
		return -EINVAL;
	}
	plain.addr = params.addr;
	plain.size = params.size;
	return pin_and_tell(file, &plain, params.flags, &user->handle);
}

/* Reads the arguments of a call whose first word is a handle. Returns its region with a reference, or an ERR_PTR. */
static struct gdrdrv_region *read_named(struct gdrdrv_file *file, void *params, const void __user *argument, size_t size)
{
	struct gdrdrv_region *region;

	if (copy_from_user(params, argument, size))
		return ERR_PTR(-EFAULT);
	region = gdrdrv_region_find(file, *(const u64 *)params);
	return region ? region : ERR_PTR(-EINVAL);
}

static int ioctl_unpin(struct gdrdrv_file *file, void __user *argument)
{
	struct gdrdrv_unpin_buffer params;
	struct gdrdrv_region *region = read_named(file, &params, argument, sizeof(params));
	int ret;

	if (IS_ERR(region))
		return PTR_ERR(region);
	ret = gdrdrv_unpin(region);
	gdrdrv_region_put(region);
	return ret;
}

static int ioctl_cb_flag(struct gdrdrv_file *file, void __user *argument)
{
	struct gdrdrv_get_cb_flag params;
	struct gdrdrv_region *region = read_named(file, &params, argument, sizeof(params));

	if (IS_ERR(region))
		return PTR_ERR(region);
	down_read(&region->lock);
	params.flag = region->callback_ran;
	up_read(&region->lock);
	gdrdrv_region_put(region);
	return copy_to_user(argument, &params, sizeof(params)) ? -EFAULT : 0;
}

static u32 clock_khz(void)
{
#ifdef CONFIG_X86
	return tsc_khz;
#else
	return 1000000; /* region.c counts nanoseconds */
#endif
}

/* Both forms of GET_INFO have the same struct, except for the last two words. */
static int ioctl_info(struct gdrdrv_file *file, void __user *argument, bool v2)
{
	struct gdrdrv_get_info params;
	struct gdrdrv_get_info_v2 *second = (struct gdrdrv_get_info_v2 *)&params;
	struct gdrdrv_region *region = read_named(file, &params, argument, sizeof(params));
	u32 type;

	BUILD_BUG_ON(sizeof(params) != sizeof(*second));
	BUILD_BUG_ON(offsetof(struct gdrdrv_get_info, mapped) != offsetof(struct gdrdrv_get_info_v2, mapping_type));
	if (IS_ERR(region))
		return PTR_ERR(region);
	down_read(&region->lock);
	type = region->type;
	up_read(&region->lock);
	params.va = region->va;
	params.mapped_size = region->size_bytes;
	params.page_size = GDRDRV_GPU_PAGE_SIZE;
	params.tsc_khz = clock_khz();
	params.tm_cycles = region->get_pages_cycles;
	if (v2) {
		second->mapping_type = type;
		second->pad = 0;
	} else {
		params.mapped = type != GDRDRV_MAPPING_NONE;
		params.wc_mapping = type == GDRDRV_MAPPING_WC;
	}
	gdrdrv_region_put(region);
	return copy_to_user(argument, &params, sizeof(params)) ? -EFAULT : 0;
}

static int ioctl_attribute(void __user *argument)
{
	struct gdrdrv_get_attr params;
	int ret = 0;

	if (copy_from_user(&params, argument, sizeof(params)))
		return -EFAULT;
	params.val = 0;
	if (params.attr == GDRDRV_ATTR_PERSISTENT)
		params.val = gdrdrv_provider_is_persistent();
	else if (params.attr == GDRDRV_ATTR_FORCE_PCIE)
		params.val = gdrdrv_provider_is_persistent(); /* the GPU driver forces BAR1 only for persistent pins */
	else
		ret = -EINVAL;
	return copy_to_user(argument, &params, sizeof(params)) ? -EFAULT : ret;
}

static int ioctl_request_type(struct gdrdrv_file *file, void __user *argument)
{
	struct gdrdrv_req_mapping_type params;
	struct gdrdrv_region *region = read_named(file, &params, argument, sizeof(params));
	int ret;

	if (IS_ERR(region))
		return PTR_ERR(region);
	ret = gdrdrv_request_type(region, params.mapping_type);
	gdrdrv_region_put(region);
	return ret;
}

static int ioctl_version(void __user *argument)
{
	const struct gdrdrv_get_version params = {
		.gdrdrv_version = GDRDRV_VERSION_WORD(GDRDRV_VERSION_MAJOR, GDRDRV_VERSION_MINOR),
		.minimum_gdr_api_version = GDRDRV_VERSION_WORD(2, 0),
	};

	return copy_to_user(argument, &params, sizeof(params)) ? -EFAULT : 0;
}

static long gdrdrv_ioctl(struct file *filp, unsigned int command, unsigned long raw)
{
	struct gdrdrv_file *file = filp->private_data;
	void __user *argument = (void __user *)raw;

	if (_IOC_TYPE(command) != GDRDRV_IOC_MAGIC)
		return -EINVAL;
	if (!gdrdrv_is_owner(file)) {
		gdrdrv_debug("ioctl 0x%x by process %d refused: process %d opened the file\n", command, current->tgid,
			     file->owner_tgid);
		return -EACCES;
	}
	switch (command) {
	case GDRDRV_IOC_PIN_BUFFER:
		return ioctl_pin(file, argument);
	case GDRDRV_IOC_PIN_BUFFER_V2:
		return ioctl_pin_v2(file, argument);
	case GDRDRV_IOC_UNPIN_BUFFER:
		return ioctl_unpin(file, argument);
	case GDRDRV_IOC_GET_CB_FLAG:
		return ioctl_cb_flag(file, argument);
	case GDRDRV_IOC_GET_INFO:
		return ioctl_info(file, argument, false);
	case GDRDRV_IOC_GET_INFO_V2:
		return ioctl_info(file, argument, true);
	case GDRDRV_IOC_GET_ATTR:
		return ioctl_attribute(argument);
	case GDRDRV_IOC_REQ_MAPPING_TYPE:
		return ioctl_request_type(file, argument);
	case GDRDRV_IOC_GET_VERSION:
		return ioctl_version(argument);
	default:
		return -ENOTTY;
	}
}

const struct file_operations gdrdrv_fops = {
	.owner = THIS_MODULE,
	.open = gdrdrv_open,
	.release = gdrdrv_release,
	.unlocked_ioctl = gdrdrv_ioctl,
	.mmap = gdrdrv_mmap,
};
