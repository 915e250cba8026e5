//! smoke
use rustix::event::{EventfdFlags, eventfd};
use std::{
    cell::Cell,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    rc::Rc,
    time::Duration,
};
use windlass::*;

#[test]
fn smoke() {
    let mut r = Reactor::new().unwrap();
    let fd = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
    let n = Rc::new(Cell::new(0));
    let m = n.clone();
    let key = interest()
        .read()
        .with_fd(fd)
        .with_handler(move |fd: &mut OwnedFd, e: Event| {
            assert!(e.has_read());
            let mut b = [0; 8];
            rustix::io::read(fd, &mut b).unwrap();
            m.set(m.get() + 1);
        })
        .register_into(&mut r)
        .unwrap();
    assert_eq!(r.run_once(None).unwrap(), 1);
    assert_eq!(n.get(), 1);
    assert_eq!(r.run_once(Duration::ZERO).unwrap(), 0);
    r.delete(key).unwrap();
    assert_eq!(r.delete(key), Err(NotFound));
    let m = n.clone();
    r.after(Duration::from_micros(300), move |mut t: Turn<'_, _>| {
        m.set(10);
        t.stop();
    })
    .unwrap();
    r.run().unwrap();
    assert_eq!(n.get(), 10);
    r.defer(|mut t: Turn<'_, _>| t.stop()).unwrap();
    r.run().unwrap();
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = l.local_addr().unwrap();
    interest().read().with_handler(on_conn).with_fd(l).register_into(&mut r).unwrap();
    let mut c = TcpStream::connect(a).unwrap();
    c.write_all(b"hi").unwrap();
    r.run_once(None).unwrap();
    r.run_once(None).unwrap();
    let mut b = [0; 2];
    c.read_exact(&mut b).unwrap();
    assert_eq!(&b, b"hi");
}
trait Accept {
    fn acc(&mut self) -> TcpStream;
}
impl Accept for TcpListener {
    fn acc(&mut self) -> TcpStream {
        self.accept().unwrap().0
    }
}
fn on_conn(l: &mut impl Accept, mut t: Turn<'_, impl ReactorOps>) {
    let s = l.acc();
    interest().read().with_fd(s).with_handler(echo).register_into(&mut t).unwrap();
}
fn echo(s: &mut TcpStream, _t: Turn<'_, impl ReactorOps>) {
    let mut b = [0; 100];
    let n = s.read(&mut b).unwrap();
    s.write_all(&b[..n]).unwrap();
}
