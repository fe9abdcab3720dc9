//! The API's description: reviewed as a snapshot, and true to what is served.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{keyed, serve};

#[test]
fn description_is_what_was_reviewed() {
    insta::assert_snapshot!(flagstone::api::openapi::document());
}

#[test]
fn every_reference_leads_somewhere() {
    let text = flagstone::api::openapi::document();
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let references: BTreeSet<&str> = text
        .split("\"#/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(references.len() > 10);
    for reference in references {
        let pointer = format!("/{reference}");
        assert!(
            document.pointer(&pointer).is_some(),
            "{reference} is missing"
        );
    }
}

#[test]
fn what_is_described_is_served() {
    let served = serve();
    let text = served.client().get_text("/openapi.json").expect("served");
    assert_eq!(text, flagstone::api::openapi::document());
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let mut operations = 0;
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let path = path
            .replace("{name}", "x")
            .replace("{volume}", "x")
            .replace("{snapshot}", "x")
            .replace("{device}", "x")
            .replace("{number}", "1");
        for (method, operation) in methods.as_object().expect("methods") {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id), "generated clients would have two '{id}'");
            if path == "/v1/node/stop" {
                continue; // Tried elsewhere; it would end this test.
            }
            operations += 1;
            let method = method.to_uppercase();
            let length = if method == "GET" {
                ""
            } else {
                "\r\nContent-Length: 0"
            };
            let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost{length}");
            let answer = served.raw(&keyed(
                format!("{head}\r\nConnection: close\r\n\r\n").as_bytes(),
            ));
            assert!(
                !answer.contains("there is nothing at"),
                "{method} {path} is not served"
            );
            assert!(
                !answer.contains("does not take"),
                "{method} {path} is not served"
            );
        }
    }
    assert_eq!(operations, 57);
}
