"""The explorer: a local web page that replans as the parameters of a federation change.

source          where the experiment comes from: the defaults, a TOML file, an upload
request         the values of the form as changes to that experiment, and the matching `dufl plan` command
plans           plan, optimum, Algorithm 1 and cost surface of a request, cached
form            the form in the sidebar and its session state
text            numbers and sentences on the page
streamlit_app   the page, a Streamlit script
serve           the server
"""
