"""The explorer: a page on which one changes a federation and sees at once what its plan becomes.

source     where the configuration comes from: the defaults, a file, an upload
spread     how a cost or a volume is spread over clients, as two numbers on the page
choices    everything that can be changed on the page, as changes to that configuration
answer     what the page shows, worked out once and remembered
sidebar    the fields
page       the page itself, a script of Streamlit's
serve      the server
"""
