// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Never loaded. Its symbol versions, which the kernel computes from the prototypes in the header, are those of the NVIDIA
 * driver with that header: gdrdrv is linked against them where the driver's own Module.symvers is not at hand.
 */
#include <linux/module.h>

#include "nvidia_p2p.h"

int nvidia_p2p_get_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address, uint64_t length,
			 struct nvidia_p2p_page_table **page_table, void (*free_callback)(void *data), void *data)
{
	return -ENODEV;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	return -ENODEV;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	return -ENODEV;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_free_page_table);

int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length, struct nvidia_p2p_page_table **page_table,
				    uint32_t flags)
{
	return -ENODEV;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(uint64_t virtual_address, struct nvidia_p2p_page_table *page_table, uint32_t flags)
{
	return -ENODEV;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages_persistent);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Symbol versions of the NVIDIA driver, for building gdrdrv");
