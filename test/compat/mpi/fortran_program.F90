! SPDX-License-Identifier: Apache-2.0
! A Fortran program that passes host memory and then device memory to MPI, and expects the same numbers. Compiled with each
! of MPI's interfaces: mpif.h, the module mpi (PL_USE_MPI) and the module mpi_f08 (PL_USE_MPI_F08).
#if defined(PL_USE_MPI_F08)
#define INTERFACE_OF_MPI use mpi_f08
#define HANDLE(name) type(name)
#elif defined(PL_USE_MPI)
#define INTERFACE_OF_MPI use mpi
#define HANDLE(name) integer
#else
#define INTERFACE_OF_MPI use nothing
#define HANDLE(name) integer
#endif

module nothing
end module

module driver
  use iso_c_binding
  implicit none
  interface
    integer(c_int) function cuInit(flags) bind(c, name='cuInit')
      import
      integer(c_int), value :: flags
    end function
    integer(c_int) function retain(context, device) bind(c, name='cuDevicePrimaryCtxRetain')
      import
      type(c_ptr) :: context
      integer(c_int), value :: device
    end function
    integer(c_int) function set_current(context) bind(c, name='cuCtxSetCurrent')
      import
      type(c_ptr), value :: context
    end function
    integer(c_int) function allocate_device(pointer, bytes) bind(c, name='cuMemAlloc_v2')
      import
      type(c_ptr) :: pointer
      integer(c_size_t), value :: bytes
    end function
    integer(c_int) function to_device(device, host, bytes) bind(c, name='cuMemcpyHtoD_v2')
      import
      type(c_ptr), value :: device
      integer :: host(*)
      integer(c_size_t), value :: bytes
    end function
    integer(c_int) function to_host(host, device, bytes) bind(c, name='cuMemcpyDtoH_v2')
      import
      integer :: host(*)
      type(c_ptr), value :: device
      integer(c_size_t), value :: bytes
    end function
  end interface
contains
  subroutine check(is_right, number)
    logical, intent(in) :: is_right
    integer, intent(in) :: number
    if (is_right) return
    print *, 'check', number, 'failed'
    stop 1
  end subroutine
end module

program fortran_program
  INTERFACE_OF_MPI
  use driver
  implicit none
#if !defined(PL_USE_MPI_F08) && !defined(PL_USE_MPI)
  include 'mpif.h'
#endif
  integer, parameter :: n = 1000
  integer(c_size_t), parameter :: bytes = 4 * n
  integer :: rank, ranks, error, i
  integer, target :: host(n)
  integer :: wanted(n), seen(n)
  integer, pointer :: data(:)
  type(c_ptr) :: context, device
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  host = [(rank * n + i, i = 1, n)]
  call exchange(host)
  wanted = host
  call check(cuInit(0) == 0 .and. retain(context, 0) == 0 .and. set_current(context) == 0, 1)
  call check(allocate_device(device, bytes) == 0, 2)
  call c_f_pointer(device, data, [n])
  host = [(rank * n + i, i = 1, n)]
  call check(to_device(device, host, bytes) == 0, 3)
  call exchange(data)
  call check(to_host(seen, device, bytes) == 0, 4)
  call check(all(seen == wanted), 5)
  call MPI_Finalize(error)
contains
  subroutine exchange(memory)
    integer, pointer, intent(in) :: memory(:)
    integer, parameter :: half = n / 2
    HANDLE(MPI_Request) :: requests(2)
    HANDLE(MPI_Datatype) :: column
    HANDLE(MPI_Win) :: window
    integer :: next_rank, previous_rank, turn
    integer(MPI_ADDRESS_KIND) :: size, place
    next_rank = mod(rank + 1, ranks)
    previous_rank = mod(rank + ranks - 1, ranks)
    call MPI_Isend(memory, half, MPI_INTEGER, next_rank, 1, MPI_COMM_WORLD, requests(1), error)
    call MPI_Irecv(memory(half + 1), half, MPI_INTEGER, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, requests(2), error)
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, error)
    call check(error == MPI_SUCCESS, 10)
    call MPI_Allreduce(MPI_IN_PLACE, memory, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    call check(error == MPI_SUCCESS, 11)
    call MPI_Send_init(memory, 10, MPI_INTEGER, next_rank, 2, MPI_COMM_WORLD, requests(1), error)
    call MPI_Recv_init(memory(101), 10, MPI_INTEGER, previous_rank, 2, MPI_COMM_WORLD, requests(2), error)
    do turn = 1, 3
      call MPI_Startall(2, requests, error)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, error)
    end do
    call MPI_Request_free(requests(1), error)
    call MPI_Request_free(requests(2), error)
    call MPI_Type_vector(10, 1, 7, MPI_INTEGER, column, error)
    call MPI_Type_commit(column, error)
    call MPI_Sendrecv(memory(200), 1, column, next_rank, 3, memory(300), 10, MPI_INTEGER, previous_rank, 3, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    call MPI_Type_free(column, error)
    size = bytes
    place = 400
    call MPI_Win_create(memory, size, 4, MPI_INFO_NULL, MPI_COMM_WORLD, window, error)
    call MPI_Win_fence(0, window, error)
    call MPI_Put(memory(500), 20, MPI_INTEGER, next_rank, place, 20, MPI_INTEGER, window, error)
    call MPI_Win_fence(0, window, error)
    call MPI_Win_free(window, error)
    call check(error == MPI_SUCCESS, 12)
  end subroutine
end program
