//! Negotiations that begin TLS, or should.

use super::*;

impl Client {
    /// Begins TLS, as far as the machine sees it.
    fn start_tls(&mut self) {
        let replies = self.option(option::STARTTLS, b"");
        assert_eq!(replies, [reply(option::STARTTLS, option_reply::ACK, b"")]);
        assert_eq!(self.end.take(), Some(Output::StartTls));
        self.machine.handle_tls();
    }
}

// [nbd "TLS support"] test
#[test]
fn a_volume_is_served_with_tls_and_where_it_is_offered_without() {
    for (policy, secure) in [
        (TlsPolicy::Offered, false),
        (TlsPolicy::Offered, true),
        (TlsPolicy::Required, true),
    ] {
        let mut client = Client::of(FIXED, policy);
        if secure {
            client.start_tls();
        }
        let replies = client.option(option::GO, &go_data("disk", &[]));
        assert_eq!(kinds(&replies), [option_reply::INFO, option_reply::ACK]);
        assert_eq!(client.agreement().export, "disk");
    }
}

// [nbd "FORCEDTLS mode"] test
#[test]
fn without_tls_nothing_is_answered_where_it_is_required() {
    let mut client = Client::of(FIXED, TlsPolicy::Required);
    for (option, data) in [
        (option::LIST, Vec::new()),
        (option::INFO, go_data("disk", &[])),
        (option::GO, go_data("disk", &[])),
        (option::STRUCTURED_REPLY, Vec::new()),
        (option::EXTENDED_HEADERS, Vec::new()),
        (option::LIST_META_CONTEXT, meta_data("disk", &[])),
        (77, b"not known".to_vec()),
    ] {
        let replies = client.option(option, &data);
        assert_eq!(kinds(&replies), [option_reply::ERR_TLS_REQD], "{option}");
    }
    let replies = client.option(option::ABORT, b"");
    assert_eq!(kinds(&replies), [option_reply::ACK]);
    assert_eq!(client.end, Some(Output::Close(NegotiationEnd::Aborted)));

    // It has no answer for an error.
    for flags in [0, FIXED] {
        let mut client = Client::of(flags, TlsPolicy::Required);
        let received = client.exchange(&message(option::EXPORT_NAME, b"disk"));
        assert_eq!(received, b"");
        let end = Output::Close(NegotiationEnd::Violation(
            "EXPORT_NAME without TLS, which is required",
        ));
        assert_eq!(client.end, Some(end));
    }
}

/// Somebody on the way may have said it. (CVE-2021-3716: nbdkit kept structured replies.)
#[test]
fn what_was_negotiated_before_tls_is_forgotten() {
    for mode in [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
        let mut client = Client::of(FIXED, TlsPolicy::Offered);
        assert_eq!(kinds(&client.option(mode, b"")), [option_reply::ACK]);
        let contexts = meta_data("disk", &["base:allocation"]);
        let replies = client.option(option::SET_META_CONTEXT, &contexts);
        assert_eq!(kinds(&replies).last(), Some(&option_reply::ACK));
        client.start_tls();
        let refused = client.option(option::SET_META_CONTEXT, &contexts);
        assert_eq!(kinds(&refused), [option_reply::ERR_INVALID], "no chunks");
        client.option(option::GO, &go_data("disk", &[]));
        let agreement = client.agreement();
        assert_eq!(agreement.mode, ReplyMode::Simple);
        assert_eq!(agreement.contexts, []);
    }
    // The selection is gone even if the mode is chosen again.
    let mut client = Client::of(FIXED, TlsPolicy::Offered);
    client.option(option::STRUCTURED_REPLY, b"");
    let contexts = meta_data("disk", &["base:allocation"]);
    client.option(option::SET_META_CONTEXT, &contexts);
    client.start_tls();
    client.option(option::STRUCTURED_REPLY, b"");
    client.option(option::GO, &go_data("disk", &[]));
    let agreement = client.agreement();
    assert_eq!(agreement.mode, ReplyMode::Structured);
    assert_eq!(agreement.contexts, []);
}

/// What comes behind STARTTLS in plain text must not be taken for what TLS protects.
#[test]
fn nothing_may_follow_starttls_in_plain_text() {
    let mut behind = message(option::STARTTLS, b"");
    behind.extend(message(option::LIST, b""));
    for len in [17, behind.len()] {
        let mut client = Client::of(FIXED, TlsPolicy::Offered);
        assert_eq!(client.exchange(&behind[..len]), b"");
        assert!(matches!(
            client.end,
            Some(Output::Close(NegotiationEnd::Violation(_)))
        ));
    }
}

#[test]
fn tls_begins_once() {
    let mut client = Client::of(FIXED, TlsPolicy::Offered);
    assert_eq!(
        kinds(&client.option(option::STARTTLS, b"x")),
        [option_reply::ERR_INVALID]
    );
    client.start_tls();
    assert_eq!(
        kinds(&client.option(option::STARTTLS, b"")),
        [option_reply::ERR_INVALID]
    );
    assert_eq!(kinds(&client.option(option::LIST, b"")).len(), 3);
}
