//! Sessions over real sockets, against peers by the buffered API of rustls, on every backend.

#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

#[macro_use]
extern crate windlass_testkit;

use windlass_testkit::{any_certificate, scenarios::Build};

mod bed;
mod certificates;
mod clients;
mod cost;
mod early_data;
mod floods;
mod hostile;
mod noise;
mod programs;
mod sessions;
