//! The guarantees over TLS: the same tests, with listeners whose streams have sessions.
//!
//! The sessions let all bytes through, so the clients need no cryptography. But each stream has
//! records of its own, and a write takes what the session gives. Tests of half-closed clients are
//! left out: with TLS a FIN alone is a truncation.

use std::{
    cell::Cell,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use windlass::stream::{
    Listener, TlsDecrypted, TlsFailure, TlsPhase, TlsSession, TlsSessionFactory,
};

use crate::{
    fixture::{Fixture, options},
    own_process::is_own_process,
    raw_client::upgrade,
    scale::allow_descriptors,
};

thread_local! {
    /// The fixtures of this thread listen with TLS.
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Adds a session to each connection of a listener, if the test runs over TLS.
pub(crate) fn with_tls_if_on(listener: Listener) -> Listener {
    if IS_ON.get() { listener.with_tls(Arc::new(Factory)) } else { listener }
}

#[derive(Debug)]
struct Factory;

impl TlsSessionFactory for Factory {
    fn new_session(&self) -> Box<dyn TlsSession> {
        Box::new(Transparent)
    }

    fn handshake_memory(&self) -> usize {
        0
    }
}

struct Transparent;

impl TlsSession for Transparent {
    fn decrypt(&mut self, input: &mut [u8], _: &mut Vec<u8>) -> TlsDecrypted {
        TlsDecrypted::new(input.len(), input.len(), TlsPhase::Open)
    }

    fn encrypt(&mut self, plaintext: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure> {
        records.extend_from_slice(plaintext);
        Ok(())
    }

    fn close_notify(&mut self, _: &mut Vec<u8>) {}
}

/// Bytes that wait for receivers, as the memory budget counts them.
fn waiting(fixture: &mut Fixture) -> u64 {
    // A timer event updates the count.
    fixture.advance_time(Duration::from_secs(2));
    fixture.stats().memory
}

#[test]
fn a_publication_is_encrypted_for_each_receiver_only_when_it_is_sent() {
    const COUNT: usize = 1000;
    const LEN: usize = 16 << 10;
    let name = "tls::a_publication_is_encrypted_for_each_receiver_only_when_it_is_sent";
    if !is_own_process(name) {
        return;
    }
    allow_descriptors(2 * COUNT + 100);
    IS_ON.set(true);
    let mut fixture = Fixture::new(&options());
    // The buffers of Unix sockets are short, so receivers that do not read soon have a full one.
    let file = format!("{}/tls-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let listener = with_tls_if_on(options().listener().unix(&file).expect("a free name"));
    fixture.service.listen(listener, &mut fixture.reactor).expect("it can be registered");
    let mut clients = Vec::new();
    for _ in 0..COUNT {
        let mut client = UnixStream::connect(&file).expect("it listens");
        client.write_all(&upgrade("/room", "")).expect("the socket takes it");
        clients.push(client);
        fixture.settle();
    }
    std::fs::remove_file(&file).expect("it is there");
    fixture.until("they are open", |fixture| {
        (fixture.log.opened.borrow().len() == COUNT).then_some(())
    });
    let ids = fixture.log.opened.borrow().clone();
    let publish = |fixture: &mut Fixture| {
        fixture.with_hub(|hub| hub.publish("room", &[7; LEN][..]));
        fixture.settle();
    };
    let mut rounds = 0;
    while ids.iter().any(|id| fixture.buffered(*id) == 0) {
        publish(&mut fixture);
        rounds += 1;
        assert!(rounds < 100, "a socket takes all");
    }
    let before = waiting(&mut fixture);
    // At most one write of each receiver is encrypted and waits, and the publications wait once.
    assert!(before <= (COUNT * (LEN + 2048) + rounds * LEN) as u64, "{before}");
    publish(&mut fixture);
    let grown = waiting(&mut fixture) - before;
    assert!(grown >= LEN as u64 && grown < (COUNT * LEN / 8) as u64, "{grown} more bytes");
    assert_eq!(fixture.stats().dropped, 0);
    // All of it comes after the response, whole.
    let client = &mut clients[COUNT / 2];
    client.set_nonblocking(true).expect("it can be set");
    let frame = [&[0x82, 126, 0x40, 0][..], &[7; LEN]].concat();
    let (mut received, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let head = received.windows(4).take(1000).position(|end| end == b"\r\n\r\n");
        let frames = head.map_or(&[][..], |head| &received[head + 4..]);
        if frames.len() >= (rounds + 1) * frame.len() {
            assert!(frames == frame.repeat(rounds + 1));
            return;
        }
        match client.read(&mut bytes) {
            Ok(0) => panic!("it ended after {} bytes", received.len()),
            Ok(count) => received.extend_from_slice(&bytes[..count]),
            Err(_) => fixture.settle(),
        }
    }
}

/// Declares a module of tests for each module of guarantees.
macro_rules! over_tls {
    ($($module:ident: $($name:ident)*;)*) => {
        $(mod $module {
            $(#[test]
            fn $name() {
                super::IS_ON.set(true);
                crate::$module::$name();
            })*
        })*
    };
}

over_tls! {
    slow_consumers:
        drop_newest_delivers_the_oldest_messages_in_order
        drop_oldest_delivers_the_newest_messages_in_order
        evict_closes_only_the_slow_receiver
        control_frames_are_not_dropped_where_messages_are
        every_ping_of_a_slow_receiver_is_answered_once_it_reads
        an_echo_client_that_does_not_read_is_held_back_and_loses_nothing
        a_receiver_that_takes_nothing_is_ended_by_the_write_stall_timeout
        a_receiver_that_takes_a_little_now_and_then_is_not_stalled
        waiting_messages_are_dropped_with_their_receiver
        answers_that_are_longer_than_their_questions_are_bounded_and_none_is_lost
        drop_oldest_keeps_the_order_for_a_receiver_that_reads_a_little_now_and_then
        drop_oldest_brings_a_large_message_that_finds_little_before_it
        drop_oldest_lets_no_small_message_overtake_a_large_one
        held_input_is_not_passed_to_the_next_connection;
    drain:
        a_drain_notifies_all_and_ends_with_the_last
        remaining_connections_are_reset_at_the_deadline
        a_slow_receiver_gets_waiting_messages_before_the_close;
    floods:
        a_flood_of_pings_is_ended_with_1008_and_others_are_served_meanwhile
        pings_within_the_limit_are_answered_second_by_second
        a_flood_of_pongs_is_a_flood_too
        empty_messages_are_messages
        a_message_in_too_many_fragments_is_ended_with_1008
        too_long_messages_are_closed_with_1009_when_the_length_is_known
        a_head_without_an_end_is_rejected_with_431
        no_bytes_after_a_violation_count;
    timeouts:
        a_request_of_one_byte_a_second_is_cut_off_at_the_handshake_timeout
        silent_clients_are_closed_at_the_handshake_timeout
        a_request_that_comes_byte_by_byte_in_time_is_answered
        a_message_of_one_byte_a_second_arrives_and_its_sender_is_not_idle
        a_silent_peer_is_pinged_and_lives_as_long_as_it_answers
        a_silent_peer_is_closed_at_the_idle_timeout
        a_connection_is_closed_when_it_has_lived_for_long_enough
        a_peer_that_does_not_answer_a_close_is_ended_at_the_close_timeout
        a_connection_that_is_kept_for_another_request_is_not_kept_for_ever
        by_the_clock_of_the_system_timeouts_come_as_well
        the_time_for_a_request_begins_anew_with_each_answer
        a_connection_closed_by_its_handler_ends_at_the_close_timeout
        a_peer_that_does_not_hang_up_after_a_violation_is_ended_at_the_close_timeout
        after_the_closing_handshake_the_socket_is_closed_at_once;
    codec_budget:
        the_codec_queue_is_served_round_robin
        a_connection_paused_in_the_codec_queue_keeps_its_input;
    order:
        echoes_and_pongs_keep_the_order_of_the_messages;
    limits:
        an_address_has_no_more_connections_than_it_may_and_others_have_theirs
        every_kind_of_disconnect_returns_the_permit
        no_more_than_so_many_are_served_at_once_and_the_others_wait_for_them
        an_ipv6_loopback_is_one_address;
    disconnects:
        a_client_may_disconnect_within_its_request
        a_client_may_disconnect_within_a_frame_and_earlier_messages_are_answered
        a_close_is_answered_and_the_connection_ended_in_order
        resets_do_not_disturb_other_connections
        a_handler_that_panics_costs_its_own_connection_and_no_other;
    memory:
        above_four_fifths_the_largest_is_not_read_from_until_there_is_room
        above_the_budget_the_largest_is_evicted_and_requests_get_503
        messages_that_come_in_part_count
        requests_that_come_in_part_count
        a_publication_for_many_receivers_counts_once
        large_answers_to_clients_that_do_not_read_are_bounded
        what_the_kernel_takes_evicts_nobody
        the_budget_is_exceeded_by_one_step_and_not_by_a_part_of_it;
    pages:
        pages_and_an_upgrade_share_a_connection
        pipelined_requests_are_answered_in_order_however_they_are_cut
        the_last_response_says_close_and_later_requests_are_not_read
        a_client_that_does_not_read_gets_few_pages
        a_slow_client_has_as_long_for_its_last_page_as_other_output_may_wait
        a_rejection_of_the_application_is_sent_and_closes_the_connection
        a_connection_has_so_many_requests_and_the_last_answer_says_so;
}
