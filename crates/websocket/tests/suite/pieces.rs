//! Long messages in pieces.

use windlass_websocket::{CloseCode, Config};

use crate::bed::{Manner, both, sockets};

#[test]
fn a_long_message_is_received_in_pieces_and_the_next_one_whole() {
    let config = Config::new().message_max(10 << 20).frame_max(10 << 20);
    for manner in [Manner::SMOOTH, Manner { chunk: 1000, ..Manner::BYTE_BY_BYTE }] {
        let (mut server, mut client) = sockets(manner, &config);
        let long: Vec<u8> = (0..1_000_000_usize).map(|at| (at / 7) as u8).collect();
        let (mut received, mut pieces) = (Vec::new(), 0);
        let receive = async {
            loop {
                let piece = server.recv_piece().await.expect("it is good").expect("a piece");
                assert!(!piece.is_text() && piece.as_bytes().len() <= 64 << 10);
                received.extend_from_slice(piece.as_bytes());
                pieces += 1;
                if piece.is_last() {
                    break;
                }
            }
            let next = server.recv().await.expect("it is good").expect("a message");
            assert_eq!(next.as_str(), Some("next"));
            // The second long message is begun in pieces, and its rest skipped.
            let piece = server.recv_piece().await.expect("it is good").expect("a piece");
            assert!(!piece.is_last());
            let last = server.recv().await.expect("it is good").expect("a message");
            assert_eq!(last.as_str(), Some("last"));
            assert!(server.recv_piece().await.expect("it is good").is_none());
        };
        let send = async {
            client.send(&long).await.expect("the connection is open");
            client.send("next").await.expect("the connection is open");
            client.send(&long).await.expect("the connection is open");
            client.send("last").await.expect("the connection is open");
            client.close(CloseCode::NORMAL, "").await.expect("it is answered");
        };
        both(receive, send);
        assert!(received == long && pieces > 10, "{pieces} pieces");
    }
}

#[cfg(feature = "deflate")]
#[test]
fn compressed_messages_are_received_in_pieces_and_whole_by_turns() {
    use windlass_websocket::DeflateConfig;

    use crate::bed::connected;

    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    for manner in Manner::ALL {
        let (mut server, mut client) = connected(manner, &config, &config);
        let text: String = (0..3_000).map(|line| format!("line {line}: zwölf\n")).collect();
        let receive = async {
            for _ in 0..2 {
                let mut received = Vec::new();
                loop {
                    let piece = server.recv_piece().await.expect("it is good").expect("a piece");
                    received.extend_from_slice(piece.as_bytes());
                    if piece.is_last() {
                        break;
                    }
                }
                assert!(received == text.as_bytes());
                let whole = server.recv().await.expect("it is good").expect("a message");
                assert_eq!(whole.as_str(), Some(&text[..]));
            }
            assert!(server.recv_piece().await.expect("it is good").is_none());
        };
        let send = async {
            for _ in 0..4 {
                client.send(&text[..]).await.expect("the connection is open");
            }
            client.close(CloseCode::NORMAL, "").await.expect("it is answered");
        };
        both(receive, send);
    }
}
