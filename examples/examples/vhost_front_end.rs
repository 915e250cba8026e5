//! A vhost-user front end passes memory and two eventfds to a device, over a Unix socket.
//!
//! Run it with `cargo run --example vhost_front_end`. The guide shows it: `docs/guide/groups.md`.

use std::os::{fd::AsFd as _, fd::OwnedFd, unix::fs::FileExt as _, unix::net::UnixStream};
use std::{fs::File, io, io::Read as _, io::Write as _, thread};

use rustix::{event::EventfdFlags, event::eventfd, fs::MemfdFlags, fs::memfd_create};
use windlass::stream::{Input, Stream, StreamHandler, StreamOptions};
use windlass::{fd_passing::send_all_with_fds, interest};

struct Device;

impl StreamHandler for Device {
    fn on_data(&mut self, stream: &mut Stream<'_>, _: Input<'_>) {
        // They are here as soon as the first byte of their message is.
        let Ok([memory, kick, call]) = <[OwnedFd; 3]>::try_from(stream.take_fds()) else { return };
        let (memory, mut call) = (File::from(memory), File::from(call));
        let mut serve = move |kick: &mut File| {
            let mut text = [0; 5];
            kick.read_exact(&mut [0; 8])?;
            memory.read_exact_at(&mut text, 0)?;
            memory.write_all_at(&text.to_ascii_uppercase(), 0)?;
            call.write_all(&1_u64.to_ne_bytes())
        };
        let on_kick =
            move |kick: &mut File| serve(kick).unwrap_or_else(|error| println!("{error}"));
        let kick = interest().read().with_fd(File::from(kick)).with_handler(on_kick);
        kick.register_into(&mut stream.turn()).expect("an eventfd can be polled");
    }
}

fn front_end(device: &UnixStream) -> io::Result<[u8; 5]> {
    let memory = File::from(memfd_create("guest memory", MemfdFlags::CLOEXEC)?);
    memory.write_all_at(b"hello", 0)?;
    let mut kick = File::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let mut call = File::from(eventfd(0, EventfdFlags::CLOEXEC)?);
    send_all_with_fds(device, b"start", &[memory.as_fd(), kick.as_fd(), call.as_fd()])?;
    kick.write_all(&1_u64.to_ne_bytes())?;
    call.read_exact(&mut [0; 8])?;
    let mut answer = [0; 5];
    memory.read_exact_at(&mut answer, 0)?;
    Ok(answer)
}

fn main() -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut reactor = windlass_examples::builder()?.build()?;
    StreamOptions::new().fds_max(3).register(ours, Device, &mut reactor)?;
    let stop = reactor.stop_handle();
    let front_end = thread::spawn(move || (front_end(&theirs), stop.stop()).0);
    reactor.run()?;
    assert_eq!(&front_end.join().expect("it does not panic")?, b"HELLO");
    Ok(())
}

#[test]
fn the_device_answers() {
    main().unwrap();
}
