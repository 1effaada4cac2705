// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The BAR's pages, handed out scattered and backwards so that code which counts on contiguity meets its mistake, zeroed when
 * handed out and overwritten with 0xDD when the last user is gone, so that a stale mapping shows.
 */
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "mock.h"

#define MOCK_STRIDE 7 /* pages between neighbours; prime to the number of pages */

DEFINE_MUTEX(mock_rm_lock);
LIST_HEAD(mock_bindings);
struct board_statistics mock_statistics;

static u64 bar_start;
static u32 bar_pages;
static u32 next_page;
static u16 *page_users;

u64 mock_physical(u32 page)
{
	return bar_start + ((u64)page << MOCK_PAGE_SHIFT);
}

static void fill_page(u32 page, int value)
{
	void __iomem *view = ioremap_wc(mock_physical(page), MOCK_PAGE_SIZE);

	if (!view)
		return;
	memset_io(view, value, MOCK_PAGE_SIZE);
	iounmap(view);
}

void mock_page_get(u32 page)
{
	page_users[page]++;
}

void mock_page_put(u32 page)
{
	if (--page_users[page] != 0)
		return;
	fill_page(page, 0xDD);
	mock_statistics.pages_used--;
}

static int page_take(u32 *out)
{
	u32 tried;

	for (tried = 0; tried < bar_pages; tried++) {
		next_page = (next_page + bar_pages - MOCK_STRIDE) % bar_pages;
		if (page_users[next_page])
			continue;
		page_users[next_page] = 1;
		mock_statistics.pages_used++;
		fill_page(next_page, 0);
		*out = next_page;
		return 0;
	}
	return -ENOMEM;
}

/* ---- Objects and their addresses ---------------------------------------------------------------------------------- */

static int object_alloc(struct mock_object *object, u64 bytes)
{
	const u64 count = (bytes + MOCK_PAGE_SIZE - 1) >> MOCK_PAGE_SHIFT;
	u32 i;

	if (object->pages || count == 0 || count > bar_pages)
		return -EINVAL;
	object->pages = kvmalloc_array(count, sizeof(u32), GFP_KERNEL);
	if (!object->pages)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		if (page_take(&object->pages[i])) {
			while (i--)
				mock_page_put(object->pages[i]);
			kvfree(object->pages);
			object->pages = NULL;
			return -ENOMEM;
		}
	}
	object->page_count = count;
	return 0;
}

static int object_bind(struct mock_object *object, const struct board_bind *params)
{
	struct mock_binding *binding;

	if ((params->address | params->bytes | params->offset) & (MOCK_PAGE_SIZE - 1) || params->bytes == 0 ||
	    params->offset + params->bytes > (u64)object->page_count << MOCK_PAGE_SHIFT)
		return -EINVAL;
	list_for_each_entry(binding, &mock_bindings, entry)
		if (binding->tgid == current->tgid && params->address < binding->address + binding->bytes &&
		    binding->address < params->address + params->bytes)
			return -EEXIST;
	binding = kzalloc(sizeof(*binding), GFP_KERNEL);
	if (!binding)
		return -ENOMEM;
	binding->object = object;
	binding->tgid = current->tgid;
	binding->address = params->address;
	binding->bytes = params->bytes;
	binding->offset = params->offset;
	list_add(&binding->entry, &mock_bindings);
	mock_statistics.bindings++;
	return 0;
}

static void binding_free(struct mock_binding *binding)
{
	mock_revoke(binding->tgid, binding->address, binding->bytes);
	list_del(&binding->entry);
	kfree(binding);
	mock_statistics.bindings--;
}

static int object_unbind(struct mock_object *object, const struct board_unbind *params)
{
	struct mock_binding *binding;

	list_for_each_entry(binding, &mock_bindings, entry) {
		if (binding->object == object && binding->tgid == current->tgid && binding->address == params->address &&
		    binding->bytes == params->bytes) {
			binding_free(binding);
			return 0;
		}
	}
	return -ENOENT;
}

/* ---- The device file ---------------------------------------------------------------------------------------------- */

static int mock_open(struct inode *inode, struct file *filp)
{
	filp->private_data = kzalloc(sizeof(struct mock_object), GFP_KERNEL);
	return filp->private_data ? 0 : -ENOMEM;
}

/* Also the end of a process that freed nothing. */
static int mock_release(struct inode *inode, struct file *filp)
{
	struct mock_object *object = filp->private_data;
	struct mock_binding *binding, *next;
	u32 i;

	mutex_lock(&mock_rm_lock);
	list_for_each_entry_safe(binding, next, &mock_bindings, entry)
		if (binding->object == object)
			binding_free(binding);
	for (i = 0; i < object->page_count; i++)
		mock_page_put(object->pages[i]);
	mutex_unlock(&mock_rm_lock);
	kvfree(object->pages);
	kfree(object);
	return 0;
}

/* By hand: what walks page tables for others is not for proprietary modules. */
static u64 pte_of(u64 address)
{
	struct mm_struct *mm = current->mm;
	u64 value = 0;
	pgd_t *pgd;
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *pmd;

	mmap_read_lock(mm);
	pgd = pgd_offset_pgd(mm->pgd, address);
	if (pgd_none(*pgd))
		goto unlock;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d))
		goto unlock;
	pud = pud_offset(p4d, address);
	if (pud_none(*pud) || pud_leaf(*pud))
		goto unlock;
	pmd = pmd_offset(pud, address);
	if (pmd_none(*pmd) || pmd_leaf(*pmd))
		goto unlock;
	value = pte_val(*pte_offset_kernel(pmd, address));
unlock:
	mmap_read_unlock(mm);
	return value;
}

static long ioctl_locked(struct mock_object *object, unsigned int command, void __user *argument)
{
	union {
		struct board_alloc alloc;
		struct board_bind bind;
		struct board_unbind unbind;
	} params;

	if (command == BOARD_IOC_STATISTICS)
		return copy_to_user(argument, &mock_statistics, sizeof(mock_statistics)) ? -EFAULT : 0;
	if (_IOC_SIZE(command) > sizeof(params) || copy_from_user(&params, argument, _IOC_SIZE(command)))
		return -EFAULT;
	switch (command) {
	case BOARD_IOC_ALLOC:
		return object_alloc(object, params.alloc.bytes);
	case BOARD_IOC_BIND:
		return object_bind(object, &params.bind);
	case BOARD_IOC_UNBIND:
		return object_unbind(object, &params.unbind);
	default:
		return -ENOTTY;
	}
}

static long mock_ioctl(struct file *filp, unsigned int command, unsigned long raw)
{
	void __user *argument = (void __user *)raw;
	struct board_pte pte;
	long ret;

	if (command == BOARD_IOC_PTE) {
		if (copy_from_user(&pte, argument, sizeof(pte)))
			return -EFAULT;
		pte.pte = pte_of(pte.address);
		return copy_to_user(argument, &pte, sizeof(pte)) ? -EFAULT : 0;
	}
	mutex_lock(&mock_rm_lock);
	ret = ioctl_locked(filp->private_data, command, argument);
	mutex_unlock(&mock_rm_lock);
	return ret;
}

static vm_fault_t mock_fault(struct vm_fault *vmf)
{
	const struct mock_object *object = vmf->vma->vm_private_data;
	const u64 offset = (u64)vmf->pgoff << PAGE_SHIFT;
	const u64 index = offset >> MOCK_PAGE_SHIFT;

	if (index >= object->page_count)
		return VM_FAULT_SIGBUS;
	return vmf_insert_pfn(vmf->vma, vmf->address & PAGE_MASK,
			      (mock_physical(object->pages[index]) + (offset & (MOCK_PAGE_SIZE - 1))) >> PAGE_SHIFT);
}

static const struct vm_operations_struct mock_vm_ops = { .fault = mock_fault };

static int mock_mmap(struct file *filp, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	vma->vm_flags |= VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP;
#else
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
#endif
	vma->vm_page_prot = __pgprot((pgprot_val(vma->vm_page_prot) & ~_PAGE_CACHE_MASK) |
				     cachemode2protval(_PAGE_CACHE_MODE_UC_MINUS));
	vma->vm_private_data = filp->private_data;
	vma->vm_ops = &mock_vm_ops;
	return 0;
}

static const struct file_operations mock_fops = {
	.owner = THIS_MODULE,
	.open = mock_open,
	.release = mock_release,
	.unlocked_ioctl = mock_ioctl,
	.mmap = mock_mmap,
};

static struct miscdevice mock_device = { .minor = MISC_DYNAMIC_MINOR, .name = "mock_gpu", .fops = &mock_fops, .mode = 0666 };

/* ---- The board ---------------------------------------------------------------------------------------------------- */

static int mock_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	int ret = pci_enable_device(device);

	if (ret)
		return ret;
	bar_start = pci_resource_start(device, 2);
	bar_pages = pci_resource_len(device, 2) >> MOCK_PAGE_SHIFT;
	page_users = kvcalloc(bar_pages, sizeof(u16), GFP_KERNEL);
	if (!page_users)
		return -ENOMEM;
	return misc_register(&mock_device);
}

static void mock_remove(struct pci_dev *device)
{
	misc_deregister(&mock_device);
	kvfree(page_users);
	pci_disable_device(device);
}

static const struct pci_device_id mock_boards[] = { { PCI_DEVICE(0x1af4, 0x1110) }, {} };

static struct pci_driver mock_driver = {
	.name = "mock_gpu",
	.id_table = mock_boards,
	.probe = mock_probe,
	.remove = mock_remove,
};

module_pci_driver(mock_driver);
#ifdef MOCK_PROPRIETARY
MODULE_LICENSE("NVIDIA");
#else
MODULE_LICENSE("Dual MIT/GPL");
#endif
MODULE_DESCRIPTION("Stand-in for the NVIDIA driver, for tests of gdrdrv in a virtual machine");
