// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Module, device node (a misc device, so no major number to agree on), parameters and /proc files as of gdrdrv 2.6. */
#include "gdrdrv.h"

#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

/* As in the stock driver, none of them is visible in sysfs. */
int gdrdrv_dbg_enabled;
module_param_named(dbg_enabled, gdrdrv_dbg_enabled, int, 0000);
MODULE_PARM_DESC(dbg_enabled, "1: log every step, and show the number of pinned page tables in /proc (default 0)");

int gdrdrv_info_enabled;
module_param_named(info_enabled, gdrdrv_info_enabled, int, 0000);
MODULE_PARM_DESC(info_enabled, "1: log what is unusual but not an error (default 0)");

int gdrdrv_use_persistent_mapping = 1;
module_param_named(use_persistent_mapping, gdrdrv_use_persistent_mapping, int, 0000);
MODULE_PARM_DESC(use_persistent_mapping,
		 "1: a pin keeps freed GPU memory alive; 0: the pin ends when the memory is freed (default 1)");

/* Every user may open it: a file serves only the process that opened it, and only memory that this process may use. */
static struct miscdevice gdrdrv_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gdrdrv",
	.fops = &gdrdrv_fops,
	.mode = 0666,
};

static bool provider_is_proprietary(void)
{
	/* Modules that use symbols of a proprietary module inherit its taint. */
	return test_bit(TAINT_PROPRIETARY_MODULE, &THIS_MODULE->taints);
}

static int params_show(struct seq_file *seq, void *unused)
{
	seq_printf(seq, "Version: %d.%d\n", GDRDRV_VERSION_MAJOR, GDRDRV_VERSION_MINOR);
	seq_printf(seq, "Built for NVIDIA driver flavor: %s\n",
		   provider_is_proprietary() ? "proprietary" : "opensource");
	seq_printf(seq, "Use persistent mapping: %s\n", gdrdrv_use_persistent_mapping ? "yes" : "no");
	seq_printf(seq, "dbg_enabled: %d\n", gdrdrv_dbg_enabled);
	seq_printf(seq, "info_enabled: %d\n", gdrdrv_info_enabled);
	return 0;
}

static int refcount_show(struct seq_file *seq, void *unused)
{
	seq_printf(seq, "%d\n", gdrdrv_pages_refcount());
	return 0;
}

static int params_open(struct inode *inode, struct file *filp)
{
	return single_open(filp, params_show, NULL);
}

static int refcount_open(struct inode *inode, struct file *filp)
{
	return single_open(filp, refcount_show, NULL);
}

static const struct proc_ops params_ops = {
	.proc_open = params_open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static const struct proc_ops refcount_ops = {
	.proc_open = refcount_open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static struct proc_dir_entry *gdrdrv_proc;

static int proc_start(void)
{
	gdrdrv_proc = proc_mkdir("driver/gdrdrv", NULL);
	if (!gdrdrv_proc)
		return -ENOMEM;
	if (!proc_create("params", 0444, gdrdrv_proc, &params_ops) ||
	    (gdrdrv_dbg_enabled && !proc_create("nv_get_pages_refcount", 0440, gdrdrv_proc, &refcount_ops))) {
		proc_remove(gdrdrv_proc);
		return -ENOMEM;
	}
	return 0;
}

static int __init gdrdrv_init(void)
{
	int ret;

	gdrdrv_mmap_init();
	ret = proc_start();
	if (ret) {
		pr_err("cannot make /proc/driver/gdrdrv (%d)\n", ret);
		return ret;
	}
	ret = misc_register(&gdrdrv_device);
	if (ret) {
		pr_err("cannot make /dev/gdrdrv (%d)\n", ret);
		proc_remove(gdrdrv_proc);
		return ret;
	}
	pr_info("version %d.%d (Peerlane), %s NVIDIA driver, %s pins\n", GDRDRV_VERSION_MAJOR, GDRDRV_VERSION_MINOR,
		provider_is_proprietary() ? "proprietary" : "open", gdrdrv_use_persistent_mapping ? "persistent" : "revocable");
	return 0;
}

/* Open files hold the module, and a closed file holds no pages, so there is nothing left to release. */
static void __exit gdrdrv_exit(void)
{
	misc_deregister(&gdrdrv_device);
	proc_remove(gdrdrv_proc);
	if (gdrdrv_pages_refcount() != 0)
		pr_err("%d page tables were never given back\n", gdrdrv_pages_refcount());
}

module_init(gdrdrv_init);
module_exit(gdrdrv_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_AUTHOR("Peerlane");
MODULE_DESCRIPTION("CPU mappings of GPU memory for libgdrapi");
MODULE_VERSION("2.6-peerlane");
