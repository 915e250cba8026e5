//! A virtual machine for the programs `kvm_device` and `kvm_counter`, and for the benchmark `kick`:
//! one processor in real mode, and a guest of a few instructions.
//!
//! Each round, the guest writes to the port of the second device, then to that of the first, and
//! halts until the first has interrupted it as often as there were rounds. It does not wait for
//! the second. After its last round it writes to [`POWER_OFF`].

#![allow(unsafe_code, reason = "memory of a guest, and descriptors by number for kvm-ioctls")]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    io,
    os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuExit, VcpuFd, VmFd};
use vmm_sys_util::eventfd::EventFd;

/// The bytes of the guest's memory, which begins at the address 0.
const MEMORY_LEN: usize = 0x1_0000;

/// KVM takes whole pages.
const MEMORY: Layout = match Layout::from_size_align(MEMORY_LEN, 0x1000) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};

/// The guest's words: the interrupts of each device, and the number of rounds.
const ANSWERS: [usize; 2] = [0x500, 0x504];
const ROUNDS: usize = 0x508;

/// The ports and interrupt lines of the two devices. The vectors are 0x20 and the line.
const PORTS: [u16; 2] = [0x510, 0x511];
const LINES: [u32; 2] = [5, 6];

/// The port by which the guest ends.
const POWER_OFF: u16 = 0x5f4;

/// Where the program begins, and the handlers of the two interrupts.
const START: usize = 0x1000;
const HANDLERS: [usize; 2] = [0x1100, 0x1140];

#[rustfmt::skip]
const PROGRAM: &[u8] = &[
    // The interrupt controller: vectors from 0x20, and only the lines 5 and 6.
    0xb0, 0x11, 0xe6, 0x20,             // mov al, 0x11; out 0x20, al
    0xb0, 0x20, 0xe6, 0x21,             // mov al, 0x20; out 0x21, al
    0xb0, 0x04, 0xe6, 0x21,             // mov al, 4;    out 0x21, al
    0xb0, 0x01, 0xe6, 0x21,             // mov al, 1;    out 0x21, al
    0xb0, 0x9f, 0xe6, 0x21,             // mov al, 0x9f; out 0x21, al
    0x66, 0x31, 0xdb,                   // xor ebx, ebx
    // A round.
    0xfa,                               // round: cli
    0xba, 0x11, 0x05, 0xee,             // mov dx, 0x511; out dx, al
    0xba, 0x10, 0x05, 0xee,             // mov dx, 0x510; out dx, al
    0x66, 0x43,                         // inc ebx
    0x66, 0x39, 0x1e, 0x00, 0x05,       // await: cmp [0x500], ebx
    0x73, 0x05,                         // jae answered
    0xfb, 0xf4, 0xfa,                   // sti; hlt; cli
    0xeb, 0xf4,                         // jmp await
    0x66, 0x3b, 0x1e, 0x08, 0x05,       // answered: cmp ebx, [0x508]
    0x72, 0xe2,                         // jb round
    0xba, 0xf4, 0x05, 0xee,             // mov dx, 0x5f4; out dx, al
    0xf4, 0xeb, 0xfd,                   // end: hlt; jmp end
];

/// The handler of an interrupt that counts in a word.
#[rustfmt::skip]
fn handler(word: usize) -> [u8; 12] {
    let [low, high] = (word as u16).to_le_bytes();
    [
        0x66, 0xff, 0x06, low, high,    // inc dword [word]
        0x50,                           // push ax
        0xb0, 0x20, 0xe6, 0x20,         // mov al, 0x20; out 0x20, al
        0x58,                           // pop ax
        0xcf,                           // iret
    ]
}

/// The guest's memory. It is freed after the machine, which alone has its address.
struct Memory(NonNull<u8>);

// SAFETY: it is used by atomic operations alone, after the guest's program was written.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(MEMORY) };
        Self(NonNull::new(start).unwrap_or_else(|| handle_alloc_error(MEMORY)))
    }

    /// Writes before the guest runs.
    fn write(&mut self, address: usize, bytes: &[u8]) {
        assert!(address + bytes.len() <= MEMORY_LEN, "the guest's memory ends before");
        // SAFETY: the address is inside of the memory.
        let to = unsafe { self.0.as_ptr().add(address) };
        // SAFETY: the range is inside of the memory, and nobody else has its address yet.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn word(&self, address: usize) -> &AtomicU32 {
        assert!(address.is_multiple_of(4) && address < MEMORY_LEN, "a word of the guest's memory");
        // SAFETY: the address is inside of the memory.
        let word = unsafe { self.0.as_ptr().add(address) };
        // SAFETY: the word is aligned, lives as long as the memory, and is used by atomic
        // operations alone here. The guest's processor writes whole words.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is the memory of `new`, and the machine that used it is gone.
        unsafe { dealloc(self.0.as_ptr(), MEMORY) };
    }
}

/// What devices do with the machine. Its clones are the same machine.
#[derive(Clone)]
pub(crate) struct Machine(Arc<Parts>);

struct Parts {
    /// Before the memory, which it uses.
    vm: VmFd,
    memory: Memory,
}

/// The processor, for a thread of its own.
pub(crate) struct Processor {
    vcpu: VcpuFd,
    _machine: Machine,
}

/// Why there is no virtual machine here; `None` if there can be one.
pub(crate) fn refusal() -> Option<String> {
    Kvm::new().err().map(|error| format!("/dev/kvm: {}", io::Error::from(error)))
}

/// A machine whose guest makes so many rounds.
pub(crate) fn machine(rounds: u32) -> io::Result<(Machine, Processor)> {
    let vm = Kvm::new()?.create_vm()?;
    // Below the firmware, where Intel's processors need three pages in real mode.
    vm.set_tss_address(0xfffb_d000)?;
    vm.create_irq_chip()?;
    let mut memory = Memory::new();
    memory.write(START, PROGRAM);
    memory.write(ROUNDS, &rounds.to_le_bytes());
    for device in 0..2 {
        memory.write(HANDLERS[device], &handler(ANSWERS[device]));
        let vector = (0x20 + LINES[device] as usize) * 4;
        memory.write(vector, &(HANDLERS[device] as u32).to_le_bytes());
    }
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY_LEN as u64,
        userspace_addr: memory.0.as_ptr() as u64,
    };
    // From here on the machine ends before its memory, on the paths of errors too: its processor,
    // which comes later, ends before this value.
    let machine = Machine(Arc::new(Parts { vm, memory }));
    let vm = &machine.0.vm;
    // SAFETY: the memory is there until the machine is gone (`Parts`), and no other region is.
    unsafe { vm.set_user_memory_region(region) }?;
    let vcpu = vm.create_vcpu(0)?;
    let mut special = vcpu.get_sregs()?;
    (special.cs.base, special.cs.selector) = (0, 0);
    vcpu.set_sregs(&special)?;
    vcpu.set_regs(&kvm_regs { rip: START as u64, rsp: 0x800, rflags: 2, ..Default::default() })?;
    Ok((machine.clone(), Processor { vcpu, _machine: machine }))
}

/// A duplicate for kvm-ioctls.
fn duplicate(fd: &OwnedFd) -> io::Result<EventFd> {
    let number = fd.try_clone()?.into_raw_fd();
    // SAFETY: the duplicate is open, and nobody else owns it.
    Ok(unsafe { EventFd::from_raw_fd(number) })
}

impl Machine {
    /// Connects a device: the kernel adds to `kick` when the guest writes to its port, and
    /// interrupts the guest when somebody adds to `interrupt`.
    pub(crate) fn plug(
        &self,
        device: usize,
        kick: &OwnedFd,
        interrupt: &OwnedFd,
    ) -> io::Result<()> {
        let port = IoEventAddress::Pio(PORTS[device].into());
        self.0.vm.register_ioevent(&duplicate(kick)?, &port, NoDatamatch)?;
        Ok(self.0.vm.register_irqfd(&duplicate(interrupt)?, LINES[device])?)
    }

    /// Disconnects a device. Later writes to its port leave the guest.
    pub(crate) fn unplug(
        &self,
        device: usize,
        kick: &OwnedFd,
        interrupt: &OwnedFd,
    ) -> io::Result<()> {
        let port = IoEventAddress::Pio(PORTS[device].into());
        self.0.vm.unregister_ioevent(&duplicate(kick)?, &port, NoDatamatch)?;
        Ok(self.0.vm.unregister_irqfd(&duplicate(interrupt)?, LINES[device])?)
    }

    /// How often a device has interrupted the guest.
    pub(crate) fn answers(&self, device: usize) -> u32 {
        self.0.memory.word(ANSWERS[device]).load(Ordering::Acquire)
    }
}

impl Processor {
    /// Runs the guest to its end. Returns how often it wrote to the port of a device that is not
    /// there.
    pub(crate) fn run(mut self) -> io::Result<u32> {
        let mut unclaimed = 0;
        loop {
            match self.vcpu.run().map_err(io::Error::from) {
                Ok(VcpuExit::IoOut(POWER_OFF, _)) => return Ok(unclaimed),
                Ok(VcpuExit::IoOut(port, _)) if PORTS.contains(&port) => unclaimed += 1,
                Ok(other) => return Err(io::Error::other(format!("the guest left: {other:?}"))),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
