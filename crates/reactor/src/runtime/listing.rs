//! The names of registrations, and the listing of all of them.

use crate::{
    Key, NotFound, Reactor, RegistrationInfo, RegistrationKind, Turn,
    api::{
        key::KeyKind,
        listing::bounded_name,
        ops::{ReactorOps, Token},
    },
    cell::CellPtr,
};

impl Reactor {
    /// Lists what is registered: descriptors, listeners, streams, timers and groups, in this order.
    ///
    /// Timers of the reactor's own are not listed, such as the one that streams with timeouts
    /// share. Neither are registrations that deleted themselves and whose handlers still run.
    ///
    /// ```
    /// use std::{os::unix::net::UnixStream, time::Duration};
    /// use windlass::{Group, Reactor, RegistrationKind, interest};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut reactor = Reactor::new()?;
    /// # let (socket, _peer) = UnixStream::pair()?;
    /// Group::new(0)
    ///     .with_name("net0")
    ///     .fd(interest().read(), socket, |frames: &mut u32| *frames += 1)
    ///     .with_member_name("net0 tx")
    ///     .register_into(&mut reactor)?;
    /// let timer = reactor.after(Duration::from_secs(1), || {})?;
    /// reactor.set_name(timer, "statistics")?;
    ///
    /// let names: Vec<_> = reactor.registrations().filter_map(|one| one.name).collect();
    /// assert_eq!(names, ["net0 tx", "statistics", "net0"]);
    /// let tx = reactor.registrations().next().expect("there are three");
    /// assert_eq!((tx.kind, tx.interest), (RegistrationKind::Descriptor, Some(interest().read())));
    /// println!("{tx:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn registrations(&self) -> impl Iterator<Item = RegistrationInfo<'_>> {
        let kernel = &self.kernel;
        let of_cell = |cell: CellPtr, kind| RegistrationInfo {
            key: cell.key(),
            kind,
            fd: Some(cell.fd()),
            interest: Some(cell.interest()),
            name: kernel.name(cell),
            group: self.groups.key_at(cell.group()),
        };
        let bare = |key, kind, name| RegistrationInfo {
            key,
            kind,
            fd: None,
            interest: None,
            name,
            group: None,
        };
        let descriptors =
            kernel.descriptors().map(move |cell| of_cell(cell, RegistrationKind::Descriptor));
        let listeners = self.streams.listener_keys().filter_map(|key| kernel.find(key));
        let listeners = listeners.map(move |cell| of_cell(cell, RegistrationKind::Listener));
        let streams = self.streams.iter().filter_map(move |(key, cell, name)| {
            let info = of_cell(kernel.find(cell)?, RegistrationKind::Stream);
            Some(RegistrationInfo { key, name, ..info })
        });
        let timers = self.timing.timers().iter().map(move |(key, group, name)| RegistrationInfo {
            group: self.groups.key_at(group),
            ..bare(key, RegistrationKind::Timer, name)
        });
        let groups =
            self.groups.iter().map(move |(key, name)| bare(key, RegistrationKind::Group, name));
        descriptors.chain(listeners).chain(streams).chain(timers).chain(groups)
    }

    /// See [`Turn::set_name`].
    ///
    /// # Errors
    /// [`NotFound`] if the key names nothing.
    pub fn set_name(&mut self, key: impl Into<Key>, name: &str) -> Result<(), NotFound> {
        self.name_key(key.into(), name, Token(()))
    }

    /// The registration whose handler took [`Stats::handler_max`](crate::Stats::handler_max), while
    /// the [watchdog](crate::Builder::watchdog) is on. `None` if it has ended since, or if it was a
    /// closure.
    #[must_use]
    pub fn slowest_handler(&self) -> Option<RegistrationInfo<'_>> {
        let slowest = self.kernel.stats().slowest?;
        let of_stream = self.streams.iter().find(|(_, cell, _)| *cell == slowest);
        let key = of_stream.map_or(slowest, |(key, ..)| key);
        self.registrations().find(|one| one.key == key)
    }

    pub(super) fn keep_name(&mut self, key: Key, name: &str) -> Result<(), NotFound> {
        let name = bounded_name(name);
        let is_found = match key.kind() {
            KeyKind::Descriptor => self.kernel.set_name(key, name),
            KeyKind::Timer => self.timing.set_name(key, name),
            KeyKind::Group => self.groups.set_name(key, name),
            KeyKind::Stream => self.streams.set_name(key, name),
        };
        if is_found { Ok(()) } else { Err(NotFound) }
    }
}

impl Turn<'_> {
    /// Lists what is registered: [`Reactor::registrations`].
    pub fn registrations(&self) -> impl Iterator<Item = RegistrationInfo<'_>> {
        self.ops_ref().registrations()
    }
}
